"""Patches against "unfold, then linear"; positions of other grids against their definition; the user's mistakes."""

import pytest
import torch
import torch.nn.functional as F

from peftlab.data.batch import Images
from peftlab.errors import UserError
from peftlab.layers.patches import Grid, ImageEmbedding, Patches


@pytest.mark.parametrize("size", [(8, 12), (8, 8), (11, 9)], ids=str)
def test_a_strided_convolution_equals_unfold_then_linear(size):
    patches, pixels = Patches(3, 4, 10), torch.randn(2, 3, *size)
    h, w = size[0] // 4, size[1] // 4
    columns = F.unfold(pixels[:, :, : h * 4, : w * 4], 4, stride=4).transpose(1, 2)  # [B, h·w, C·p·p]
    expected = F.linear(columns, patches.weight.flatten(1), patches.bias)
    torch.testing.assert_close(patches(pixels).flatten(2).transpose(1, 2), expected, rtol=0, atol=1e-6)


def embedding(distilled: bool = False) -> ImageEmbedding:
    made = ImageEmbedding(channels=1, image=6, patch=2, dim=5, distilled=distilled, dropout=0.0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


@pytest.mark.parametrize("distilled", [False, True])
def test_a_token_is_its_patch_and_its_place_and_the_marks_come_first(distilled):
    made, pixels = embedding(distilled), torch.randn(2, 1, 6, 6)
    x, mask, full, n, first, _ = made(Images(pixels))
    k = 2 if distilled else 1
    assert (x.shape, n, full, first.tolist()) == ((2, k + 9, 5), 0, True, [0, 0])
    assert mask.all()
    table = made.positions.table[0]
    torch.testing.assert_close(x[:, 0], (made.cls[0, 0] + table[0]).expand(2, -1))
    if distilled:
        torch.testing.assert_close(x[:, 1], (made.distillation[0, 0] + table[1]).expand(2, -1))
    for row in range(3):
        for column in range(3):
            patch = pixels[:, 0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            vector = torch.einsum("bij,dij->bd", patch, made.patches.weight[:, 0]) + made.patches.bias
            place = k + 3 * row + column
            torch.testing.assert_close(x[:, place], vector + table[place], rtol=0, atol=1e-5)


def cubic(t: float) -> float:
    """The weight of a value at distance t (Keys 1981, a = −0.75)."""
    t, a = abs(t), -0.75
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def spread(side: int, count: int) -> torch.Tensor:
    """[count, side] by how much each of `side` places counts at each of `count` new ones, centres on centres."""
    weights = torch.zeros(count, side)
    for i in range(count):
        centre = (i + 0.5) * side / count - 0.5
        for j in range(-3, side + 3):
            weights[i, min(max(j, 0), side - 1)] += cubic(centre - j)
    return weights


@pytest.mark.parametrize("size", [(5, 7), (2, 3), (3, 4), (3, 3)], ids=str)
@pytest.mark.parametrize("marks", [1, 2])
def test_positions_of_another_grid_are_interpolated_and_those_of_the_marks_stay(marks, size):
    grid = Grid(marks, 3, 4)
    torch.nn.init.normal_(grid.table)
    square = grid.table[0, marks:].unflatten(0, (3, 3))
    expected = torch.einsum("hi,wj,ijd->hwd", spread(3, size[0]), spread(3, size[1]), square).flatten(0, 1)
    found = grid(*size)
    assert torch.equal(found[:, :marks], grid.table[:, :marks])
    torch.testing.assert_close(found[0, marks:], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 6, 6), r"the images have 3 channel\(s\), the model reads 1"),
        ((1, 1, 6, 1), "an image of 6×1 pixels is smaller than the model's patches of 2×2"),
    ],
)
def test_images_that_the_model_can_not_read_are_named(shape, message):
    with pytest.raises(UserError, match=message):
        embedding()(Images(torch.zeros(shape)))


def test_pixels_that_are_no_images_are_named():
    with pytest.raises(UserError, match=r"pixels have shape \[3, 6, 6\]"):
        Images(torch.zeros(3, 6, 6))
    with pytest.raises(UserError, match=r"pixels have shape \[0, 3, 6, 6\]"):
        Images(torch.zeros(0, 3, 6, 6))
    with pytest.raises(UserError, match=r"pixels are torch.uint8: they must be normalised"):
        Images(torch.zeros(1, 3, 6, 6, dtype=torch.uint8))
