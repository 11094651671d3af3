"""What one layer costs at one rank: its kernels, what it keeps and computes again, and how long its passes take."""
