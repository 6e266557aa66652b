# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The part of the bookkeeping that stays in Python.

TokenWriter updates the arrays. Each request's own output list, and the lists of
tokens in the step's output, are built here, each once in one pass over the rows.
"""

from collections.abc import Sequence

import numpy as np

from vllm.v1.worker.token_writer import PLACEHOLDER_TOKEN_ID


def extend_outputs(
    outputs: Sequence[list[int]],
    sampled_token_ids: np.ndarray,
    num_new_tokens: np.ndarray,
    discarded_rows: Sequence[int],
) -> list[list[int]]:
    """Append the sampled tokens to the requests' output lists.

    Args:
        outputs: Output token ids of the request of each row, extended.
        sampled_token_ids: [num_rows, width] int32, each row starting with its
            valid tokens, as compacted by TokenWriter.append.
        num_new_tokens: [num_rows] int32, number of tokens of each row.
        discarded_rows: Indices of the rows whose tokens are dropped.

    Returns:
        The new tokens of each row.
    """
    token_lists: list[list[int]] = sampled_token_ids.tolist()
    if sampled_token_ids.shape[1] == 1:
        for row in discarded_rows:
            token_lists[row].clear()
        for output, new_token_ids in zip(outputs, token_lists):
            output.extend(new_token_ids)
    else:
        counts = num_new_tokens.tolist()
        for output, new_token_ids, count in zip(outputs, token_lists, counts):
            del new_token_ids[count:]
            output.extend(new_token_ids)
    return token_lists


def extend_outputs_with_placeholders(
    outputs: Sequence[list[int]], num_rows: int, discarded_rows: Sequence[int]
) -> None:
    """Append one placeholder to the output list of each row that is kept.

    Args:
        outputs: Output token ids of the request of each row, extended.
        num_rows: Number of rows that sampled in this step.
        discarded_rows: Indices of the rows whose tokens are dropped.
    """
    if not discarded_rows:
        for output in outputs[:num_rows]:
            output.append(PLACEHOLDER_TOKEN_ID)
        return
    discarded = set(discarded_rows)
    for row, output in enumerate(outputs[:num_rows]):
        if row not in discarded:
            output.append(PLACEHOLDER_TOKEN_ID)


def index_sampled_requests(
    req_id_to_index: dict[str, int],
    req_ids: Sequence[str],
    discarded_rows: Sequence[int],
) -> dict[str, int]:
    """Map each request whose token is kept to its row.

    Args:
        req_id_to_index: Row of each request of the batch.
        req_ids: Request of each row.
        discarded_rows: Indices of the rows whose tokens are dropped.

    Returns:
        A new dict, unaffected by later moves in the batch.
    """
    index = req_id_to_index.copy()
    for row in discarded_rows:
        del index[req_ids[row]]
    return index
