"""The devices and hosts that a run trains on, and what their processors can do."""
