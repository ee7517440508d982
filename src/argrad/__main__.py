"""`python -m argrad`, which is also what torchrun starts."""

import sys

from argrad.cli import main

sys.exit(main())
