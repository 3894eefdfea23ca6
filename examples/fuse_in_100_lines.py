"""FUSE in a hundred lines: how a gradient crosses from one tokenizer to another.

A language model i writes a text, a model j scores it. Each has its own tokens and embeddings, so
the gradient of j's loss is of no use to i. Three equations of Williams & Kolter (2024) change that.
The package `fuseprompt.fuse` does the same for real vocabularies. Run me: only torch is needed.
"""

import torch

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
torch.set_printoptions(precision=3, sci_mode=False)

# ---- Equation 3: both models have the same tokens ------------------------------------------------
# Row x of V_i and row x of V_j embed the same token, so T with V_i T = V_j translates embeddings.
# Its least-squares solution is T = V_i^+ V_j.
V_i, V_j = torch.randn(4, 5), torch.randn(4, 3)  # 4 tokens; i is 5 wide and j is 3 wide
T = torch.linalg.pinv(V_i) @ V_j
print("Eq. 3: V_i T misses V_j by", float((V_i @ T - V_j).abs().max().round(decimals=12)))

# Translating is a matrix product E_j = E_i T, so a gradient goes back through the transpose of T.
# (The paper prints no transpose, but without it the shapes do not fit.)
target = torch.randn(3)


def loss(e_j: torch.Tensor) -> torch.Tensor:
    """Return how far the mean embedding is from a target: any loss of model j would do."""
    return (e_j.mean(0) - target).square().sum()


E_j = V_j[[0, 2, 1]].requires_grad_()  # a text of three tokens, as j reads it
(g_j,) = torch.autograd.grad(loss(E_j), E_j)
print("Eq. 3: the gradient for i, of shape", tuple((g_j @ T.T).shape))

# ---- Words instead of tokens ---------------------------------------------------------------------
# Now i and j cut words differently: "jumps" is "j umps" for i and "jump s" for j. But both respect
# blanks. So a word is one row whose entries are tubes: place t of a tube belongs to token t.
I = {"j": 0, "umps": 1, "qui": 2, "ck": 3, "br": 4, "own": 5, "l": 6, "azy": 7}  # noqa: E741
J = {"jump": 0, "s": 1, "q": 2, "uick": 3, "bro": 4, "wn": 5, "la": 6, "zy": 7}
WORDS = {
    "jumps": ("j umps", "jump s"), "quick": ("qui ck", "q uick"),
    "brown": ("br own", "bro wn"), "lazy": ("l azy", "la zy"),
}  # fmt: skip
V_i, V_j = torch.randn(8, 5), torch.randn(8, 3)
DEPTH = 3  # one place more than tokens: it stays empty and shows what padding does


def word_tensor(texts: list[str], ids: dict[str, int], vectors: torch.Tensor) -> torch.Tensor:
    """Return the tensor (words, width, tubes) of figure 1, zero where a word has no token."""
    tensor = torch.zeros(len(texts), vectors.shape[1], DEPTH)
    for w, text in enumerate(texts):
        for t, token in enumerate(text.split()):
            tensor[w, :, t] = vectors[ids[token]]
    return tensor


def t_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply as matrices whose entries are tubes: slice t is the sum of a_s b_(t - s mod l)."""
    depth = a.shape[2]
    slices = [sum(a[..., s] @ b[..., (t - s) % depth] for s in range(depth)) for t in range(depth)]
    return torch.stack(slices, -1)


def t_pinv(a: torch.Tensor) -> torch.Tensor:
    """Invert: a Fourier transform along tubes makes the t-product one matrix product a slice."""
    slices = torch.fft.fft(a, dim=2).permute(2, 0, 1)
    return torch.fft.ifft(torch.linalg.pinv(slices).permute(1, 2, 0), dim=2).real


def t_transpose(a: torch.Tensor) -> torch.Tensor:
    """Transpose every slice and reverse slices 2..l: a lag of +r forward is one of -r back."""
    return torch.cat([a[..., :1], a[..., 1:].flip(2)], 2).transpose(0, 1)


# ---- Equation 4: the map between words -----------------------------------------------------------
word_i = word_tensor([cut for cut, _ in WORDS.values()], I, V_i)
word_j = word_tensor([cut for _, cut in WORDS.values()], J, V_j)
T = t_product(t_pinv(word_i), word_j)  # algorithm 2
gap = (t_product(word_i, T) - word_j).abs().max()
print("Eq. 4: words translated by T miss those of j by", float(gap.round(decimals=12)))


# ---- Equation 5: the gradient comes back ---------------------------------------------------------
# split: one tensor (1, width, tubes) per word; multiply by T's transpose; merge. Stacked as here,
# all words are multiplied at once.
def merge(words: torch.Tensor) -> torch.Tensor:
    """Return one row per token again; every word here has two."""
    return words[..., :2].transpose(1, 2).flatten(0, 1)


E_j = word_j.clone().requires_grad_()
(G,) = torch.autograd.grad(loss(merge(E_j)), E_j)  # in the embeddings of j, its own
carried = t_product(G, t_transpose(T))
E_i = word_i.clone().requires_grad_()
(exact,) = torch.autograd.grad(loss(merge(t_product(E_i, T))), E_i)  # as if the map were part of j
unreversed = t_product(G, T.transpose(0, 1))
print("Eq. 5: differs from autograd by", float((carried - exact).abs().max().round(decimals=12)))
print("       without the reversal by", float((unreversed - exact).abs().max().round(decimals=3)))
before, after = loss(merge(word_j)), loss(merge(t_product(word_i - 0.1 * carried, T)))
print(f"A step of i against it: j's loss falls from {before:.3f} to {after:.3f}")
