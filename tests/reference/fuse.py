"""Algorithms 1 and 2 of the paper, corrected, by loops. Imports nothing of ours."""

import torch
from torch import Tensor


def word_tensor(rows: list[list[int]], vocabulary: Tensor, depth: int) -> Tensor:
    """Write the n-th token of each word into slice n (algorithm 2, its second half)."""
    out = torch.zeros(len(rows), vocabulary.shape[1], depth, dtype=vocabulary.dtype)
    for w, row in enumerate(rows):
        for n, token in enumerate(row):
            out[w, :, n] = vocabulary[token]
    return out


def ridge_map(a: Tensor, b: Tensor, weights: Tensor, ridge: float) -> Tensor:
    """Solve the block-circulant ridge problem as one dense system."""
    w, dp, depth = a.shape
    ds = b.shape[1]
    # Row block i of the block-circulant matrix of a word holds its tubes shifted by i.
    left = torch.zeros(w * depth, dp * depth, dtype=a.dtype)
    right = torch.zeros(w * depth, ds, dtype=a.dtype)
    for n in range(w):
        root = float(weights[n]) ** 0.5
        for i in range(depth):
            right[n * depth + i] = root * b[n, :, i]
            for j in range(depth):
                left[n * depth + i, j * dp : (j + 1) * dp] = root * a[n, :, (i - j) % depth]
    gram = left.T @ left
    shift = ridge * gram.diagonal().mean()
    flat = torch.linalg.solve(gram + shift * torch.eye(len(gram), dtype=a.dtype), left.T @ right)
    out = torch.zeros(dp, ds, depth, dtype=a.dtype)
    for j in range(depth):
        out[:, :, j] = flat[j * dp : (j + 1) * dp]
    return out


def forward_word(word: Tensor, jacobian: Tensor, num_secondary: int) -> Tensor:
    """Map one word (k, dp) to (l, ds): tube t of the result is the sum of word_s T_(t-s mod p)."""
    depth = jacobian.shape[2]
    out = torch.zeros(num_secondary, jacobian.shape[1], dtype=word.dtype)
    for t in range(num_secondary):
        for s in range(word.shape[0]):
            out[t] += word[s] @ jacobian[:, :, (t - s) % depth]
    return out


def backward_word(grad: Tensor, jacobian: Tensor, num_primary: int) -> Tensor:
    """Carry the gradient of one word (l, ds) back to (k, dp): the transpose of `forward_word`."""
    depth = jacobian.shape[2]
    out = torch.zeros(num_primary, jacobian.shape[0], dtype=grad.dtype)
    for s in range(num_primary):
        for t in range(grad.shape[0]):
            out[s] += jacobian[:, :, (t - s) % depth] @ grad[t]
    return out


def printed_backward_word(grad: Tensor, jacobian: Tensor, num_primary: int) -> Tensor:
    """Carry the gradient of one word (l, ds) back to (k, dp) by L[k] * T, as algorithm 1 prints it.

    Slices are transposed so that the product exists, and stay in their order; rows beyond the
    secondary's tokens are zero.
    """
    depth = jacobian.shape[2]
    out = torch.zeros(num_primary, jacobian.shape[0], dtype=grad.dtype)
    for s in range(min(num_primary, grad.shape[0])):
        for t in range(grad.shape[0]):
            out[s] += jacobian[:, :, (s - t) % depth] @ grad[t]
    return out
