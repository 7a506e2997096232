"""feddrop: federated dropout over wireless edge devices, with the radio in the loop."""
