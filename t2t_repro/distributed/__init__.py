"""The devices and hosts that a run trains on."""
