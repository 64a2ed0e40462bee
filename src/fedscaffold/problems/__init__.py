"""What is minimised: f = Σ_c w_c f_c, one f_c per client."""

from fedscaffold.problems import partition
from fedscaffold.problems.differentiable import Differentiable
from fedscaffold.problems.encoding import Encoding
from fedscaffold.problems.files import from_csv, from_parquet, from_svmlight
from fedscaffold.problems.frames import from_frame
from fedscaffold.problems.gaussian_stream import GaussianStream
from fedscaffold.problems.linear_sa import LinearSA
from fedscaffold.problems.logistic import Logistic
from fedscaffold.problems.logistic_stream import LogisticStream
from fedscaffold.problems.multinomial import Multinomial
from fedscaffold.problems.paper import paper
from fedscaffold.problems.ridge import Ridge
from fedscaffold.problems.td import GarnetTD

__all__ = [
    "Differentiable",
    "Encoding",
    "GarnetTD",
    "GaussianStream",
    "LinearSA",
    "Logistic",
    "LogisticStream",
    "Multinomial",
    "Ridge",
    "from_csv",
    "from_frame",
    "from_parquet",
    "from_svmlight",
    "paper",
    "partition",
]
