"""A linear layer that decodes with the kernel for a few rows."""

from jaxtyping import Float
from torch import Tensor, nn

from mixerloop.config import Form
from mixerloop.ops.linear import linear


class Projection(nn.Linear):
    """`nn.Linear` in a form; weights, names and gradients are the same.

    Tools that select layers by their exact type, such as `quantize_dynamic`, pass it over.
    """

    def __init__(self, d_input: int, d_output: int, *, form: Form, bias: bool = False) -> None:
        super().__init__(d_input, d_output, bias=bias)
        self.form: Form = form

    def forward(  # the name of the argument is torch's
        self,
        input: Float[Tensor, "*batch d_input"],  # noqa: A002
    ) -> Float[Tensor, "*batch d_output"]:
        """One product."""
        return linear(input, self.weight, self.bias, form=self.form)
