"""What one layer costs at one rank: its kernels, what it keeps and recomputes, and how long its passes take."""
