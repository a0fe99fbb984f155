import pytest
import tiny_models as models
import torch

from executor.networks import Chain, canonical_names, initial_values, whole_chain

IMAGES = {"resnet"}


def batch_of(model, sequences=2):
    if model.family == "convolution":
        side = model.embedding.image_size
        return torch.randn(sequences, 3, side, side), torch.zeros(sequences, dtype=torch.long)
    tokens = torch.randint(model.vocabulary, (sequences, model.sequence_length))
    return tokens, tokens.roll(-1, dims=1)


@pytest.mark.parametrize("name", models.ALL)
def test_parameters_are_those_of_the_model(name):
    model = models.ALL[name]()
    with torch.device("meta"):
        network = whole_chain(model)
    assert sum(p.numel() for p in network.parameters()) == model.total_parameters


def test_resnet50_has_the_published_parameters():
    model = models.resnet(depths=(3, 4, 6, 3), image_size=224, num_classes=1000)
    with torch.device("meta"):
        network = whole_chain(model)
    assert sum(p.numel() for p in network.parameters()) == 25_557_032  # torchvision's resnet50


@pytest.mark.parametrize("name", models.ALL)
def test_slices_in_a_row_are_the_whole(name):
    model = models.ALL[name]()
    whole = whole_chain(model)
    middle = model.num_layers // 2
    front = Chain(model, range(middle), first=True, last=False)
    back = Chain(model, range(middle, model.num_layers), first=False, last=True)
    for network in (whole, front, back):
        for parameter_name, parameter in canonical_names(network):
            start = initial_values(parameter_name, parameter.shape, seed=1)
            if parameter_name == "head.output.weight" and model.tied:
                start = initial_values("embedding.tokens.weight", parameter.shape, seed=1)
            parameter.data.copy_(start)
    x, targets = batch_of(model)
    torch.testing.assert_close(back(front(x), targets), whole(x, targets))


@pytest.mark.parametrize("name", models.ALL)
def test_every_parameter_gets_a_gradient(name):
    model = models.ALL[name]()
    network = whole_chain(model)
    for parameter_name, parameter in canonical_names(network):
        parameter.data.copy_(initial_values(parameter_name, parameter.shape, seed=1))
    x, targets = batch_of(model)
    network(x, targets).backward()
    without = [n for n, p in canonical_names(network) if p.grad is None]
    assert not without


def test_root_mean_square_norm_is_torchs():
    from executor.networks.norm import RMSNorm

    ours, theirs = RMSNorm(24, eps=1e-5).double(), torch.nn.RMSNorm(24, eps=1e-5).double()
    x = torch.randn(3, 5, 24, dtype=torch.double, requires_grad=True)
    weight = torch.randn(24, dtype=torch.double)
    results = []
    for norm in (ours, theirs):
        norm.weight.data.copy_(weight)
        x.grad = None
        norm(x).square().sum().backward()
        results.append((norm(x).detach(), x.grad, norm.weight.grad))
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


def test_llama_agrees_with_the_closed_form_of_rotary_positions():
    """A rotation changes no lengths, and products depend on distances alone."""
    from executor.networks.attention import Rotary

    rotary = Rotary(8)
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    rotated = [rotary(t.expand(1, 6, 1, 8))[0, :, 0] for t in (query, key)]
    products = rotated[0] @ rotated[1].T
    torch.testing.assert_close(products.diagonal(1), products.diagonal(1)[0].expand(5))
    torch.testing.assert_close(rotated[0].norm(dim=1), query.norm().expand(6))
