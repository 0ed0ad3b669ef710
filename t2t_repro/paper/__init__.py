"""The paper's Tables 2 to 4, its estimate of training cost, and its attention figures."""
