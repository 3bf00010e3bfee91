"""Be imported relatively."""
