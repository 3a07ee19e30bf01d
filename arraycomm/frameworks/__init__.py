"""Support for frameworks beyond DLPack. arraycomm itself imports nothing of this package."""
