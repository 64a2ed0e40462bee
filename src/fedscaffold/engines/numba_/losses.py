"""The losses that there are kernels for, by the name that a problem has as its `kind`."""

RIDGE, LOGISTIC, DENSE, SOFTMAX = 0, 1, 2, 3  # the kernels' numbers

TABLE_LOSSES = {"ridge": RIDGE, "logistic": LOGISTIC, "td": RIDGE, "linear_sa": DENSE, "multinomial": SOFTMAX}
STREAM_LOSSES = {"ridge_stream": RIDGE, "logistic_stream": LOGISTIC}
