"""The paper's Tables 2 to 4, its estimate of cost, and its attention figures."""
