"""What is read off trained models, stored results and data."""

import pandas as pd

pd.set_option("display.max_colwidth", None)  # rules, settings and licences are not to be cut
