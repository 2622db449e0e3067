"""Every structure that classifiers are made of: how many kernels can leave, worked out by hand, and exactly so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from models import saved
from onnx import numpy_helper
from structures import check, net

import dlprune as ha
from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.handle import new_handle

# --- chains and residuals ---------------------------------------------------------------------------------------------


def test_each_convolution_of_a_plain_chain_keeps_one_kernel() -> None:
    proto = net(
        """
        ar = Relu(a)
        c = Conv<pads = [1,1,1,1]>(ar, w2)
        cr = Relu(c)""",
        "float[6,8,3,3] w2",
        ("cr", 6),
        stem=8,
    )
    check(proto, kernels=7 + 5, convolutions=2)


def test_a_flattened_map_takes_all_its_columns_of_the_gemm_with_it() -> None:
    proto = net(
        """
        a = Conv<strides = [2,2], pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        f = Flatten(ar)
        y = Gemm<transB = 1>(f, w2, b2)""",
        "float[4,3,3,3] w1, float[4] b1, float[5,64] w2, float[5] b2",
    )
    check(proto, kernels=3, convolutions=1)


def test_the_trunk_of_a_residual_block_is_coupled() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv<pads = [1,1,1,1]>(ar, w2, b2)
        br = Relu(b)
        c = Conv<pads = [1,1,1,1]>(br, w3)
        s = Add(c, ar)
        sr = Relu(s)""",
        "float[6,8,3,3] w2, float[6] b2, float[8,6,3,3] w3",
        ("sr", 8),
        stem=8,
    )
    check(proto, kernels=7 * 2 + 5, convolutions=3)


def test_a_residual_stage_is_coupled_with_its_projection() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv<pads = [1,1,1,1], strides = [2,2]>(ar, w2, b2)
        br = Relu(b)
        c = Conv<pads = [1,1,1,1]>(br, w3)
        p = Conv<strides = [2,2]>(ar, w4, b4)
        s = Add(c, p)
        sr = Relu(s)
        d = Conv<pads = [1,1,1,1]>(sr, w5)
        dr = Relu(d)
        e = Conv<pads = [1,1,1,1]>(dr, w6, b6)
        t = Add(e, sr)
        tr = Relu(t)""",
        """float[6,4,3,3] w2, float[6] b2, float[6,6,3,3] w3, float[6,4,1,1] w4,
        float[6] b4, float[7,6,3,3] w5, float[6,7,3,3] w6, float[6] b6""",
        ("tr", 6),
        stem=4,
    )
    check(proto, kernels=3 + 5 + 5 * 3 + 6, convolutions=6)


def test_dense_blocks_read_each_layer_several_times() -> None:
    proto = net(
        """
        n1 = BatchNormalization(a, s1, h1, m1, var1)
        r1 = Relu(n1)
        b = Conv<pads = [1,1,1,1]>(r1, w2)
        ab = Concat<axis = 1>(a, b)
        n2 = BatchNormalization(ab, s2, h2, m2, var2)
        r2 = Relu(n2)
        c = Conv<pads = [1,1,1,1]>(r2, w3)
        abc = Concat<axis = 1>(ab, c)
        n3 = BatchNormalization(abc, s3, h3, m3, var3)
        r3 = Relu(n3)
        d = Conv(r3, w4)
        dr = Relu(d)""",
        """float[3,4,3,3] w2, float[3,7,3,3] w3, float[5,10,1,1] w4,
        float[4] s1, float[4] h1, float[4] m1, float[4] var1, float[7] s2, float[7] h2, float[7] m2, float[7] var2,
        float[10] s3, float[10] h3, float[10] m3, float[10] var3""",
        ("dr", 5),
        stem=4,
    )
    check(proto, kernels=3 + 2 + 2 + 4, convolutions=4)


def test_the_expansion_of_an_inverted_residual_leaves_with_its_depthwise_kernels() -> None:
    proto = net(
        """
        e = Conv(a, w2)
        en = BatchNormalization(e, s1, h1, m1, var1)
        er = Clip(en, zero, six)
        d = Conv<group = 12, pads = [1,1,1,1]>(er, w3)
        dn = BatchNormalization(d, s2, h2, m2, var2)
        dr = Clip(dn, zero, six)
        p = Conv(dr, w4, b4)
        t = Add(a, p)""",
        """float[12,4,1,1] w2, float[12,1,3,3] w3, float[4,12,1,1] w4, float[4] b4,
        float[12] s1, float[12] h1, float[12] m1, float[12] var1,
        float[12] s2, float[12] h2, float[12] m2, float[12] var2, float zero = {0.0}, float six = {6.0}""",
        ("t", 4),
        stem=4,
    )
    check(proto, kernels=3 * 2 + 11 * 2, convolutions=4)


# --- grouped convolutions ---------------------------------------------------------------------------------------------


def test_a_channel_leaves_with_both_kernels_of_a_depthwise_multiplier_of_two() -> None:
    proto = net(
        """
        ar = Relu(a)
        d = Conv<group = 4, pads = [1,1,1,1]>(ar, w2, b2)
        dr = Relu(d)
        p = Conv(dr, w3)
        pr = Relu(p)""",
        "float[8,1,3,3] w2, float[8] b2, float[6,8,1,1] w3",
        ("pr", 6),
        stem=4,
    )
    check(proto, kernels=3 * 3 + 5, convolutions=3)


def test_a_depthwise_convolution_of_the_image_loses_kernels_of_all_its_groups() -> None:
    proto = net(
        """
        d = Conv<group = 3, pads = [1,1,1,1]>(x, w1, b1)
        dr = Relu(d)
        p = Conv(dr, w2)
        pr = Relu(p)""",
        "float[12,1,3,3] w1, float[12] b1, float[6,12,1,1] w2",
        ("pr", 6),
    )
    check(proto, kernels=3 * 3 + 5, convolutions=2)


def test_a_grouped_convolution_loses_the_same_position_of_each_group() -> None:
    proto = net(
        """
        ar = Relu(a)
        g = Conv<group = 2, pads = [1,1,1,1]>(ar, w2, b2)
        gr = Relu(g)
        p = Conv(gr, w3)
        pr = Relu(p)""",
        "float[6,4,3,3] w2, float[6] b2, float[4,6,1,1] w3",
        ("pr", 4),
        stem=8,
    )
    check(proto, kernels=3 * 2 + 2 * 2 + 3, convolutions=3)


# --- gates ------------------------------------------------------------------------------------------------------------


def test_squeeze_and_excitation_by_convolutions_is_coupled_with_its_trunk() -> None:
    proto = net(
        """
        g = GlobalAveragePool(a)
        s = Conv(g, w2, b2)
        sr = Relu(s)
        e = Conv(sr, w3, b3)
        eg = Sigmoid(e)
        m = Mul(a, eg)
        c = Conv(m, w4)
        cr = Relu(c)""",
        """float[3,8,1,1] w2, float[3] b2, float[8,3,1,1] w3, float[8] b3,
        float[4,8,1,1] w4""",
        ("cr", 4),
        stem=8,
    )
    check(proto, kernels=7 * 2 + 2 + 3, convolutions=4)


def test_squeeze_and_excitation_by_gemms_leaves_with_its_trunk() -> None:
    proto = net(
        """
        g = GlobalAveragePool(a)
        f = Flatten(g)
        s = Gemm(f, w2, b2)
        sr = Relu(s)
        e = Gemm(sr, w3, b3)
        eg = Sigmoid(e)
        er = Reshape(eg, shape)
        m = Mul(a, er)""",
        """float[8,3] w2, float[3] b2, float[3,8] w3, float[8] b3,
        int64[4] shape = {-1,8,1,1}""",
        ("m", 8),
        stem=8,
    )
    check(proto, kernels=7, convolutions=1)


# --- branches ---------------------------------------------------------------------------------------------------------


def test_branches_joined_by_concat_lose_kernels_independently() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv(ar, w2, b2)
        c = Conv<pads = [1,1,1,1]>(ar, w3, b3)
        bc = Concat<axis = 1>(b, c)
        r = Relu(bc)
        d = Conv(r, w4)
        dr = Relu(d)""",
        """float[3,6,1,1] w2, float[3] b2, float[4,6,3,3] w3, float[4] b3,
        float[5,7,1,1] w4""",
        ("dr", 5),
        stem=6,
    )
    check(proto, kernels=5 + 2 + 3 + 4, convolutions=4)


def test_pools_pass_the_channels_of_their_branch() -> None:
    proto = net(
        """
        b = Conv(a, w2, b2)
        p = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(a)
        c = Conv(p, w3, b3)
        q = AveragePool<kernel_shape = [3,3], pads = [1,1,1,1]>(a)
        j = Concat<axis = 1>(b, c, q)
        r = Relu(j)""",
        "float[3,4,1,1] w2, float[3] b2, float[2,4,1,1] w3, float[2] b3",
        ("r", 9),
        stem=4,
    )
    check(proto, kernels=3 + 2 + 1, convolutions=3)


def test_two_stems_that_are_added_are_coupled() -> None:
    proto = net(
        """
        b = Conv<pads = [2,2,2,2]>(x, w2)
        s = Add(a, b)
        r = Relu(s)""",
        "float[6,3,5,5] w2",
        ("r", 6),
        stem=6,
    )
    check(proto, kernels=5 * 2, convolutions=2)


def test_the_cheap_kernels_of_a_ghost_module_leave_with_their_primary_ones() -> None:
    proto = net(
        """
        a = Conv(x, w1, b1)
        ar = Relu(a)
        c = Conv<group = 4, pads = [1,1,1,1]>(ar, w2, b2)
        cr = Relu(c)
        j = Concat<axis = 1>(ar, cr)
        d = Conv(j, w3, b3)
        dr = Relu(d)""",
        "float[4,3,1,1] w1, float[4] b1, float[4,1,3,3] w2, float[4] b2, float[5,8,1,1] w3, float[5] b3",
        ("dr", 5),
    )
    check(proto, kernels=3 * 2 + 4, convolutions=3)


def test_a_u_net_joins_what_it_has_resized() -> None:
    proto = net(
        """
        ar = Relu(a)
        p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(ar)
        b = Conv<pads = [1,1,1,1]>(p, w2, b2)
        br = Relu(b)
        u = Resize<mode = "nearest">(br, , scales)
        j = Concat<axis = 1>(ar, u)
        d = Conv<pads = [1,1,1,1]>(j, w3)
        dr = Relu(d)""",
        """float[6,4,3,3] w2, float[6] b2, float[5,10,3,3] w3,
        float[4] scales = {1.0,1.0,2.0,2.0}""",
        ("dr", 5),
        stem=4,
    )
    check(proto, kernels=3 + 5 + 4, convolutions=3)


def test_slopes_of_prelu_leave_with_their_channels() -> None:
    proto = net(
        """
        ar = PRelu(a, s1)
        b = Conv<pads = [1,1,1,1]>(ar, w2)
        br = PRelu(b, s2)""",
        "float[4,6,3,3] w2, float[6,1,1] s1, float[1,1,1] s2",
        ("br", 4),
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_transposed_convolutions_lose_kernels_also_in_groups() -> None:
    proto = net(
        """
        a = Conv<strides = [2,2], pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        t = ConvTranspose<strides = [2,2], pads = [1,1,1,1], output_padding = [1,1]>(ar, w2, b2)
        tr = Relu(t)
        u = ConvTranspose<group = 2>(tr, w3, b3)
        ur = Relu(u)""",
        "float[4,3,3,3] w1, float[4] b1, float[4,6,3,3] w2, float[6] b2, float[6,2,3,3] w3, float[4] b3",
        ("ur", 4),
    )
    # The grouped one is read at the same position of both groups and loses the same position of both.
    check(proto, kernels=3 + 2 * 2 + 1 * 2, convolutions=3, silence=False)


def test_chunks_of_a_c2f_block_are_coupled_with_what_is_added_to_them() -> None:
    proto = net(
        """
        p, q = Split<axis = 1>(a, sizes)
        b = Conv<pads = [1,1,1,1]>(q, w2, b2)
        br = Relu(b)
        c = Conv<pads = [1,1,1,1]>(br, w3)
        s = Add(q, c)
        j = Concat<axis = 1>(p, q, s)
        d = Conv(j, w4)
        dr = Relu(d)""",
        """float[5,4,3,3] w2, float[5] b2, float[4,5,3,3] w3, float[6,12,1,1] w4,
        int64[2] sizes = {4,4}""",
        ("dr", 6),
        stem=8,
    )
    # Each half of the first convolution keeps one kernel; those of the second half take one of w3 with them.
    check(proto, kernels=3 + 3 * 2 + 4 + 5, convolutions=4)


# --- data movement ----------------------------------------------------------------------------------------------------


def test_a_channel_shuffle_couples_nothing() -> None:
    proto = net(
        """
        ar = Relu(a)
        s = Reshape(ar, split)
        t = Transpose<perm = [0,2,1,3,4]>(s)
        m = Reshape(t, merge)
        c = Conv(m, w2)
        cr = Relu(c)""",
        """float[5,8,1,1] w2,
        int64[5] split = {-1,2,4,8,8}, int64[4] merge = {-1,8,8,8}""",
        ("cr", 5),
        stem=8,
    )
    check(proto, kernels=7 + 4, convolutions=2)


def test_a_channel_shuffle_between_grouped_convolutions_keeps_the_groups_in_step() -> None:
    proto = net(
        """
        ar = Relu(a)
        s = Reshape(ar, split)
        t = Transpose<perm = [0,2,1,3,4]>(s)
        m = Reshape(t, merge)
        c = Conv<group = 2>(m, w2, b2)
        cr = Relu(c)
        d = Conv(cr, w3)
        dr = Relu(d)""",
        """float[8,4,1,1] w2, float[8] b2, float[4,8,1,1] w3,
        int64[5] split = {0,2,4,8,8}, int64[4] merge = {0,-1,8,8}""",
        ("dr", 4),
        stem=8,
    )
    check(proto, kernels=3 * 2 + 3 * 2 + 3, convolutions=3)


def test_a_channel_shuffle_of_three_groups_is_a_reordering() -> None:
    proto = net(
        """
        ar = Relu(a)
        s = Reshape(ar, split)
        t = Transpose<perm = [0,2,1,3]>(s)
        m = Reshape(t, merge)
        c = Conv<group = 3>(m, w2, b2)
        cr = Relu(c)""",
        """float[9,2,1,1] w2, float[9] b2,
        int64[4] split = {0,3,2,64}, int64[4] merge = {0,6,8,8}""",
        ("cr", 9),
        stem=6,
    )
    # Two positions of three channels each are read, three of three kernels each are made; one of each stays. Whole
    # groups would leave three units only.
    check(proto, kernels=1 * 3 + 2 * 3, convolutions=2)


def test_a_channel_shuffle_of_four_groups_may_compute_its_shapes() -> None:
    proto = net(
        """
        ar = Relu(a)
        shape = Shape(ar)
        n = Gather<axis = 0>(shape, i0)
        c = Gather<axis = 0>(shape, i1)
        h = Gather<axis = 0>(shape, i2)
        w = Gather<axis = 0>(shape, i3)
        cf = Cast<to = 7>(c)
        per = Div(cf, four)
        nu = Unsqueeze(n, ax)
        pu = Unsqueeze(per, ax)
        cu = Unsqueeze(c, ax)
        hu = Unsqueeze(h, ax)
        wu = Unsqueeze(w, ax)
        split = Concat<axis = 0>(nu, fourv, pu, hu, wu)
        merge = Concat<axis = 0>(nu, cu, hu, wu)
        s = Reshape(ar, split)
        t = Transpose<perm = [0,2,1,3,4]>(s)
        m = Reshape(t, merge)
        d = Conv(m, w2)
        dr = Relu(d)""",
        """float[5,8,1,1] w2, int64 four = {4}, int64[1] fourv = {4}, int64[1] ax = {0},
        int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}, int64 i3 = {3}""",
        ("dr", 5),
        stem=8,
    )
    check(proto, kernels=7 + 4, convolutions=2)


def test_a_shuffle_net_v2_unit_keeps_one_kernel_of_each_half() -> None:
    proto = net(
        """
        p1, q1 = Split<axis = 1>(a, halves)
        b1a = Conv(q1, w2, b2)
        b1r = Relu(b1a)
        b1b = Conv<group = 4, pads = [1,1,1,1]>(b1r, w3, b3)
        b1c = Conv(b1b, w4, b4)
        b1o = Relu(b1c)
        j1 = Concat<axis = 1>(p1, b1o)
        s1 = Reshape(j1, split)
        t1 = Transpose<perm = [0,2,1,3,4]>(s1)
        m1 = Reshape(t1, merge)
        p2, q2 = Split<axis = 1>(m1, halves)
        b2a = Conv(q2, w5, b5)
        b2r = Relu(b2a)
        b2b = Conv<group = 4, pads = [1,1,1,1]>(b2r, w6, b6)
        b2c = Conv(b2b, w7, b7)
        b2o = Relu(b2c)
        j2 = Concat<axis = 1>(p2, b2o)
        s2 = Reshape(j2, split)
        t2 = Transpose<perm = [0,2,1,3,4]>(s2)
        m2 = Reshape(t2, merge)
        d = Conv(m2, w8)
        dr = Relu(d)""",
        """float[4,4,1,1] w2, float[4] b2, float[4,1,3,3] w3, float[4] b3,
        float[4,4,1,1] w4, float[4] b4, float[4,4,1,1] w5, float[4] b5, float[4,1,3,3] w6, float[4] b6,
        float[4,4,1,1] w7, float[4] b7, float[6,8,1,1] w8, int64[2] halves = {4,4},
        int64[5] split = {-1,2,4,8,8}, int64[4] merge = {-1,8,8,8}""",
        ("dr", 6),
        stem=8,
    )
    # Left half of the first convolution and w4 share both halves of the second unit: of their 8 kernels 2 can cover all
    # that must stay. The right half keeps 1 of 4, both inner pairs 3 of 4, w7 3 of 4, the last 5 of 6.
    check(proto, kernels=6 + 3 + 3 * 2 + 3 * 2 + 3 + 5, convolutions=8)


def test_a_map_may_be_flattened_in_channels_last_order() -> None:
    proto = net(
        """
        a = Conv<strides = [2,2], pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        t = Transpose<perm = [0,2,3,1]>(ar)
        f = Flatten(t)
        y = Gemm(f, w2, b2)""",
        "float[4,3,3,3] w1, float[4] b1, float[64,5] w2, float[5] b2",
    )
    check(proto, kernels=3, convolutions=1)


def test_maps_may_be_joined_after_they_were_flattened() -> None:
    proto = net(
        """
        a = Conv<strides = [2,2], pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        b = Conv<strides = [2,2], pads = [1,1,1,1]>(x, w2)
        br = Relu(b)
        af = Flatten(ar)
        bf = Flatten(br)
        j = Concat<axis = 1>(af, bf)
        y = Gemm(j, w3, b3)""",
        "float[3,3,3,3] w1, float[3] b1, float[4,3,3,3] w2, float[112,5] w3, float[5] b3",
    )
    check(proto, kernels=2 + 3, convolutions=2)


@pytest.mark.parametrize(("split", "last", "first"), [("int64 split = {4}", 1, 4), ("int64[2] split = {3,5}", -1, 3)])
def test_chunks_may_pass_through_a_sequence(split: str, last: int, first: int) -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        parts = SplitToSequence<axis = 1>(ar, split)
        p = SequenceAt(parts, zero)
        q = SequenceAt(parts, last)
        b = Conv(p, w2)
        c = Conv(q, w3)
        s = Concat<axis = 1>(b, c)
        r = Relu(s)""",
        f"""float[8,3,3,3] w1, float[8] b1, float[3,{first},1,1] w2, float[2,{8 - first},1,1] w3, {split},
        int64 zero = {{0}}, int64 last = {{{last}}}""",
        ("r", 5),
        seed=3,
    )
    # One channel stays in each part.
    check(proto, kernels=6 + 2 + 1, convolutions=3)


def test_a_type_may_be_taken_from_another_tensor() -> None:
    proto = net(
        """
        half = CastLike(number, x)
        m = Mul(a, half)
        b = Conv(m, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2, double number = {0.5}",
        ("br", 4),
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_a_slice_of_channels_keeps_one_of_them_and_the_others_are_free() -> None:
    proto = net(
        """
        ar = Relu(a)
        s = Slice(ar, start, end, axis)
        b = Conv(s, w2)
        br = Relu(b)""",
        """float[5,4,1,1] w2,
        int64[1] start = {2}, int64[1] end = {6}, int64[1] axis = {1}""",
        ("br", 5),
        stem=8,
    )
    check(proto, kernels=4 + 3 + 4, convolutions=2)


def test_a_slice_without_channels_stays_empty_whatever_leaves() -> None:
    proto = net(
        """
        ar = Relu(a)
        s = Slice(ar, start, end, axis)
        k = Concat<axis = 1>(s, ar)
        b = Conv(k, w2)
        br = Relu(b)""",
        """float[5,8,1,1] w2,
        int64[1] start = {-1}, int64[1] end = {1}, int64[1] axis = {1}""",
        ("br", 5),
        stem=8,
    )
    check(proto, kernels=7 + 4, convolutions=2)


def test_a_strided_slice_of_channels_and_space_becomes_a_pick() -> None:
    proto = net(
        """
        ar = Relu(a)
        s = Slice(ar, start, end, axes, steps)
        b = Conv(s, w2)
        br = Relu(b)
        e = Slice(br, last, first, axis, back)
        c = Conv(e, w3)
        cr = Relu(c)""",
        """float[6,4,1,1] w2, float[4,6,1,1] w3, int64[2] start = {1,0},
        int64[2] end = {9223372036854775807,8}, int64[2] axes = {1,3}, int64[2] steps = {2,2}, int64[1] last = {-1},
        int64[1] first = {-9223372036854775807}, int64[1] axis = {1}, int64[1] back = {-1}""",
        ("cr", 4),
        stem=8,
    )
    check(proto, kernels=4 + 3 + 5 + 3, convolutions=3)


@pytest.mark.parametrize("index", ["Identity(two)", "Neg(two)"])
def test_a_channel_that_is_picked_by_its_number_stays_and_the_others_are_free(index: str) -> None:
    proto = net(
        f"""
        i = {index}
        mask = Gather<axis = 1>(a, i)
        ms = Unsqueeze(mask, one)
        g = Mul(a, ms)
        b = Conv(g, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2, int64[1] one = {1}, int64 two = {2}",
        ("br", 4),
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2, silence=False)


def test_results_that_nobody_reads_do_not_matter() -> None:
    proto = net(
        """
        p, indices = MaxPool<kernel_shape = [2,2], strides = [2,2]>(a)
        n, mean, deviation = LayerNormalization<axis = 2>(p, s1)
        r = Relu(n)
        b = Conv(r, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2, float[4,4] s1",
        ("br", 4),
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_a_padded_channel_leaves_with_what_is_added_to_it() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv<strides = [2,2], pads = [1,1,1,1]>(ar, w2, b2)
        br = Relu(b)
        c = Conv<pads = [1,1,1,1]>(br, w3)
        q = AveragePool<kernel_shape = [2,2], strides = [2,2]>(ar)
        p = Pad(q, amounts)
        s = Add(c, p)
        r = Relu(s)""",
        """float[6,4,3,3] w2, float[6] b2, float[8,6,3,3] w3,
        int64[8] amounts = {0,2,0,0,0,2,0,0}""",
        ("r", 8),
        stem=4,
    )
    # The middle four kernels of w3 leave with one of w1 each, of which one must stay; the outer four leave alone.
    check(proto, kernels=3 * 2 + 4 + 5, convolutions=3)


def test_a_pixel_shuffle_couples_the_channels_of_a_block() -> None:
    for mode in ("DCR", "CRD"):
        proto = net(
            f"""
            a = Conv<pads = [1,1,1,1]>(x, w1, b1)
            d = DepthToSpace<blocksize = 2, mode = "{mode}">(a)
            r = Relu(d)
            s = SpaceToDepth<blocksize = 4>(r)
            b = Conv(s, w2)
            br = Relu(b)""",
            "float[12,3,3,3] w1, float[12] b1, float[4,48,1,1] w2",
            ("br", 4),
        )
        check(proto, kernels=2 * 4 + 3, convolutions=2)


def test_a_pixel_shuffle_spelled_as_reshapes_couples_the_same() -> None:
    proto = net(
        """
        s = Reshape(a, split)
        t = Transpose<perm = [0,1,4,2,5,3]>(s)
        d = Reshape(t, merge)
        r = Relu(d)
        b = Conv(r, w2)
        br = Relu(b)""",
        """float[4,3,1,1] w2,
        int64[6] split = {-1,3,2,2,8,8}, int64[4] merge = {-1,3,16,16}""",
        ("br", 4),
        stem=12,
    )
    check(proto, kernels=2 * 4 + 3, convolutions=2)


# --- shared weights ---------------------------------------------------------------------------------------------------


def test_one_weight_may_serve_two_convolutions() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv<pads = [1,1,1,1]>(ar, w2, b2)
        br = Relu(b)
        c = Conv<pads = [1,1,1,1]>(br, w2, b2)
        cr = Relu(c)""",
        "float[4,4,3,3] w2, float[4] b2",
        ("cr", 4),
        stem=4,
    )
    check(proto, kernels=3 * 3, convolutions=3, silence=False)


def test_one_bias_may_serve_many_layers() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1, b)
        ar = Relu(a)
        c = Conv<pads = [1,1,1,1]>(ar, w2, b)
        cr = Relu(c)
        d = Conv<pads = [1,1,1,1]>(cr, w3, b)
        n = BatchNormalization(d, s, b, b, var)
        dr = Relu(n)""",
        "float[5,3,3,3] w1, float[5] b, float[5,5,3,3] w2, float[5,5,3,3] w3, float[5] s, float[5] var",
        ("dr", 5),
    )
    check(proto, kernels=4 * 3, convolutions=3)


# --- more groups and joins --------------------------------------------------------------------------------------------


def test_two_and_four_groups_in_a_row_take_the_finer_coupling() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv<group = 2, pads = [1,1,1,1]>(ar, w2, b2)
        br = Relu(b)
        c = Conv<group = 4, pads = [1,1,1,1]>(br, w3, b3)
        cr = Relu(c)
        d = Conv(cr, w4)
        dr = Relu(d)""",
        """float[8,4,3,3] w2, float[8] b2, float[8,2,3,3] w3, float[8] b3,
        float[5,8,1,1] w4""",
        ("dr", 5),
        stem=8,
    )
    # w1: 4 units of 2. w2: position j of both groups, and of the four groups that read it: 2 units of 4. w3: 2 of 4.
    check(proto, kernels=3 * 2 + 4 + 4 + 4, convolutions=4)


def test_a_grouped_convolution_loses_whole_groups_where_those_are_more() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv<group = 6, pads = [1,1,1,1]>(ar, w2, b2)
        br = Relu(b)""",
        "float[12,2,3,3] w2, float[12] b2",
        ("br", 12),
        stem=12,
    )
    check(proto, kernels=5 * 4, convolutions=2)


def test_the_same_tensor_may_be_joined_with_itself() -> None:
    proto = net(
        """
        j = Concat<axis = 1>(a, a)
        r = Relu(j)
        b = Conv(r, w2)
        br = Relu(b)""",
        "float[5,8,1,1] w2",
        ("br", 5),
        stem=4,
    )
    check(proto, kernels=3 + 4, convolutions=2)


def test_a_chain_of_pools_may_be_joined_twice() -> None:
    proto = net(
        """
        ar = Relu(a)
        p = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(ar)
        q = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(p)
        s = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(q)
        j = Concat<axis = 1>(ar, p)
        k = Concat<axis = 1>(q, s)
        l = Concat<axis = 1>(j, k)
        b = Conv(l, w2)
        br = Relu(b)""",
        "float[5,16,1,1] w2",
        ("br", 5),
        stem=4,
    )
    check(proto, kernels=3 + 4, convolutions=2)


def test_branches_joined_in_space_keep_the_same_kernels() -> None:
    proto = net(
        """
        b = Conv<pads = [2,2,2,2]>(x, w2, b2)
        j = Concat<axis = 3>(a, b)
        r = Relu(j)
        c = Conv(r, w3)
        cr = Relu(c)""",
        "float[4,3,5,5] w2, float[4] b2, float[5,4,1,1] w3",
        ("cr", 5),
        stem=4,
    )
    check(proto, kernels=3 * 2 + 4, convolutions=3)


def test_three_producers_of_a_sum_are_coupled() -> None:
    proto = net(
        """
        b = Conv<pads = [2,2,2,2]>(x, w2)
        c = Conv(x, w3)
        s = Sum(a, b, c)
        r = Relu(s)""",
        "float[5,3,5,5] w2, float[5,3,1,1] w3",
        ("r", 5),
        stem=5,
    )
    check(proto, kernels=4 * 3, convolutions=3)


def test_sums_of_sums_are_coupled() -> None:
    proto = net(
        """
        b = Conv<pads = [2,2,2,2]>(x, w2)
        c = Conv(x, w3)
        s = Add(b, c)
        t = Add(a, s)
        r = Relu(t)""",
        "float[5,3,5,5] w2, float[5,3,1,1] w3",
        ("r", 5),
        stem=5,
    )
    check(proto, kernels=4 * 3, convolutions=3)


def test_a_mask_of_one_channel_couples_nothing() -> None:
    proto = net(
        """
        ar = Relu(a)
        m = Conv(ar, w2, b2)
        ms = Sigmoid(m)
        g = Mul(ar, ms)
        b = Conv(g, w3)
        br = Relu(b)""",
        "float[1,6,1,1] w2, float[1] b2, float[4,6,1,1] w3",
        ("br", 4),
        stem=6,
    )
    reasons = check(proto, kernels=5 + 3, convolutions=2)
    assert reasons == {"m": "it has one kernel only, and one must stay"}


def test_a_mask_made_of_the_image_couples_nothing() -> None:
    proto = net(
        """
        first = Slice(x, zero, one, one)
        g = Mul(first, a)
        b = Conv(g, w2)
        br = Relu(b)""",
        """float[4,6,1,1] w2, int64[1] zero = {0}, int64[1] one = {1}""",
        ("br", 4),
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_a_mask_may_be_expanded_to_all_channels() -> None:
    proto = net(
        """
        first = Slice(x, zero, one, one)
        shape = Shape(a)
        mask = Expand(first, shape)
        g = Mul(a, mask)
        rows = Expand(first, literal)
        j = Concat<axis = 1>(g, rows)
        b = Conv(j, w2)
        br = Relu(b)""",
        """float[4,8,1,1] w2, int64[1] zero = {0}, int64[1] one = {1},
        int64[4] literal = {1,2,1,1}""",
        ("br", 4),
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_channels_that_meet_the_image_itself_stay() -> None:
    proto = net(
        """
        s = Add(a, x)
        r = Relu(s)
        b = Conv(r, w2)
        br = Relu(b)""",
        "float[4,3,1,1] w2",
        ("br", 4),
        stem=3,
    )
    reasons = check(proto, kernels=3, convolutions=1)
    assert "joins it with data whose channels must stay" in reasons["a"]


def test_a_last_convolution_of_one_kernel_stays() -> None:
    proto = net(
        """
        a = Conv<strides = [2,2], pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        b = Conv(ar, w2, b2)
        f = Flatten(b)
        y = Gemm(f, w3, b3)""",
        "float[4,3,3,3] w1, float[4] b1, float[1,4,1,1] w2, float[1] b2, float[16,5] w3, float[5] b3",
    )
    reasons = check(proto, kernels=3, convolutions=1)
    assert reasons == {"b": "it has one kernel only, and one must stay"}


def test_the_convolution_that_makes_the_classes_stays() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv(ar, w2, b2)
        g = GlobalAveragePool(b)
        y = Flatten(g)""",
        "float[5,4,1,1] w2, float[5] b2",
        stem=4,
    )
    reasons = check(proto, kernels=3, convolutions=1)
    assert reasons == {"b": "it reaches the network's output"}


def test_a_layer_of_two_kernels_never_loses_both() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv(ar, w2)
        br = Relu(b)""",
        "float[10,2,1,1] w2",
        ("br", 10),
        stem=2,
    )
    check(proto, kernels=1 + 9, convolutions=2, shares=(0.9, 1.0))


# --- literal and computed shapes --------------------------------------------------------------------------------------


def test_a_literal_number_of_columns_is_mended() -> None:
    proto = net(
        """
        ar = Relu(a)
        f = Reshape(ar, shape)
        y = Gemm(f, w2, b2)""",
        "float[256,5] w2, float[5] b2, int64[2] shape = {-1,256}",
        stem=4,
    )
    check(proto, kernels=3, convolutions=1)


def test_a_single_image_may_be_flattened_into_one_row() -> None:
    proto = net(
        """
        ar = Relu(a)
        f = Reshape(ar, shape)
        y = Gemm(f, w2, b2)""",
        "float[256,5] w2, float[5] b2, int64[2] shape = {1,-1}",
        image="1,3,8,8",
        stem=4,
    )
    check(proto, kernels=3, convolutions=1)


def test_a_map_may_take_the_way_over_rank_three() -> None:
    proto = net(
        """
        s = Reshape(a, rows)
        r = Relu(s)
        m = Reshape(r, map)
        b = Conv(m, w2)
        br = Relu(b)""",
        """float[5,4,1,1] w2,
        int64[3] rows = {0,4,64}, int64[4] map = {-1,4,8,8}""",
        ("br", 5),
        stem=4,
    )
    check(proto, kernels=3 + 4, convolutions=2)


def test_a_head_may_squeeze_one_axis_after_the_other() -> None:
    proto = net(
        """
        ar = Relu(a)
        g = ReduceMean<axes = [2,3]>(ar)
        s = Squeeze(g, three)
        t = Squeeze(s, two)
        y = Gemm(t, w2, b2)""",
        "float[4,5] w2, float[5] b2, int64[1] two = {2}, int64[1] three = {-1}",
        stem=4,
    )
    check(proto, kernels=3, convolutions=1)


def test_a_squeeze_of_all_it_can_leaves_a_last_channel_alone() -> None:
    proto = net(
        """
        ar = Relu(a)
        g = GlobalAveragePool(ar)
        s = Squeeze(g)
        y = MatMul(s, w2)""",
        "float[4,5] w2",
        image="2,3,8,8",
        stem=4,
    )
    check(proto, kernels=3, convolutions=1)


def test_a_head_may_compute_its_shape() -> None:
    proto = net(
        """
        ar = Relu(a)
        g = GlobalAveragePool(ar)
        shape = Shape(g)
        n = Gather<axis = 0>(shape, zero)
        c = Gather<axis = 0>(shape, one)
        nu = Unsqueeze(n, axis)
        cu = Unsqueeze(c, axis)
        flat = Concat<axis = 0>(nu, cu)
        f = Reshape(g, flat)
        y = Gemm(f, w2, b2)""",
        """float[4,5] w2, float[5] b2, int64 zero = {0}, int64 one = {1},
        int64[1] axis = {0}""",
        stem=4,
    )
    check(proto, kernels=3, convolutions=1)


def test_a_computed_shape_may_hold_the_channel_number_as_a_literal() -> None:
    proto = net(
        """
        ar = Relu(a)
        shape = Shape(ar)
        n = Slice(shape, zero, one)
        space = Slice(shape, two, four)
        rows = Concat<axis = 0>(n, channels, minus)
        map = Concat<axis = 0>(n, channels, space)
        s = Reshape(ar, rows)
        t = Transpose<perm = [0,2,1]>(s)
        m = MatMul(t, w2)
        mr = Relu(m)
        u = Transpose<perm = [0,2,1]>(mr)
        v = Reshape(u, map)
        b = Conv(v, w3)
        br = Relu(b)""",
        """float[6,6] w2, float[4,6,1,1] w3, int64[1] zero = {0}, int64[1] one = {1},
        int64[1] two = {2}, int64[1] four = {4}, int64[1] channels = {6}, int64[1] minus = {-1}""",
        ("br", 4),
        stem=6,
    )
    # The features of the MatMul are no kernels of a convolution and stay.
    check(proto, kernels=5 + 3, convolutions=2)


@pytest.mark.parametrize("use", ["reshape", "slice"])
def test_a_channel_number_that_shapes_another_tensor_stays_what_it_was(use: str) -> None:
    """Attention takes the number of its channels from the shape of what it reads; the other number may even fit."""
    body = {
        "reshape": """
        target = Concat<axis = 0>(n, two, half, minus)
        r = Reshape(l, target)
        s = Softmax<axis = 2>(r)
        m = Reshape(s, map)""",
        "slice": """
        end = Add(half, four)
        r = Slice(l, half, end, two)
        m = Transpose<perm = [0,1,3,2]>(r)""",
    }[use]
    needed = {"reshape": "int64[1] minus = {-1}, int64[4] map = {0,8,8,8}", "slice": "int64[1] four = {4}"}[use]
    proto = net(
        f"""
        k = Conv(a, w2)
        l = LRN<size = 3>(k)
        shape = Shape(a)
        n = Slice(shape, zero, one)
        c = Slice(shape, one, two)
        half = Div(c, two)
        {body}
        b = Conv(m, w3)
        br = Relu(b)""",
        f"""float[8,8,1,1] w2, float[4,8,1,1] w3, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
        {needed}""",
        ("br", 4),
        stem=8,
    )
    reasons = check(proto, kernels=7 + 3, convolutions=2)
    assert reasons == {"k": "it is normalised across channels by LRN 'LRN_0'"}


def test_features_may_be_laid_out_as_a_map() -> None:
    proto = net(
        """
        a = Conv<strides = [2,2], pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        f = Flatten(ar)
        m = Gemm(f, w2, b2)
        v = Reshape(m, map)
        t = ConvTranspose<strides = [2,2]>(v, w3, b3)
        tr = Relu(t)""",
        """float[4,3,3,3] w1, float[4] b1, float[64,24] w2, float[24] b2, float[6,4,2,2] w3, float[4] b3,
        int64[4] map = {-1,6,2,2}""",
        ("tr", 4),
    )
    check(proto, kernels=3 + 3, convolutions=2)


def test_kernels_may_be_added_to_features_laid_out_as_a_map() -> None:
    proto = net(
        """
        a = Conv<strides = [2,2], pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        g = GlobalAveragePool(x)
        f = Flatten(g)
        m = Gemm(f, w2, b2)
        v = Reshape(m, map)
        s = Add(ar, v)
        r = Relu(s)""",
        "float[4,3,3,3] w1, float[4] b1, float[3,64] w2, float[64] b2, int64[4] map = {-1,4,4,4}",
        ("r", 4),
    )
    # Each kernel takes the sixteen features of its channel with it; silencing the kernel alone silences nothing.
    check(proto, kernels=3, convolutions=1, silence=False)


def test_one_dimensional_convolutions_are_pruned() -> None:
    proto = net(
        """
        s = Reshape(x, rows)
        a = Conv<pads = [1,1]>(s, w1, b1)
        ar = Relu(a)
        b = Conv<pads = [2,2], dilations = [2], kernel_shape = [3]>(ar, w2)
        br = Relu(b)
        p = MaxPool<kernel_shape = [2], strides = [2]>(br)""",
        "float[6,3,3] w1, float[6] b1, float[4,6,3] w2, int64[3] rows = {0,3,64}",
        ("p", 4),
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_three_dimensional_convolutions_with_instance_normalization_are_pruned() -> None:
    proto = net(
        """
        v = Unsqueeze(x, one)
        a = Conv<pads = [1,1,1,1,1,1]>(v, w1, b1)
        n = InstanceNormalization(a, s1, h1)
        ar = Relu(n)
        b = Conv<strides = [1,2,2]>(ar, w2)
        br = Relu(b)""",
        "float[6,1,3,3,3] w1, float[6] b1, float[4,6,3,3,3] w2, float[6] s1, float[6] h1, int64[1] one = {1}",
        ("br", 4),
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_focus_slices_of_the_image_and_of_a_map_keep_channels_in_step() -> None:
    def focus(source: str, prefix: str) -> str:
        lines = []
        for row in range(2):
            for column in range(2):
                name = f"{prefix}{row}{column}"
                lines.append(f"{name}r = Slice({source}, at{row}, far, rows, two)")
                lines.append(f"{name} = Slice({name}r, at{column}, far, columns, two)")
        lines.append(f"{prefix} = Concat<axis = 1>({prefix}00, {prefix}10, {prefix}01, {prefix}11)")
        return "\n".join(lines)

    proto = net(
        f"""
        {focus("x", "f")}
        a = Conv<pads = [1,1,1,1]>(f, w1, b1)
        ar = Relu(a)
        {focus("ar", "g")}
        b = Conv(g, w2)
        br = Relu(b)""",
        """float[6,12,3,3] w1, float[6] b1, float[5,24,1,1] w2, int64[1] at0 = {0}, int64[1] at1 = {1},
        int64[1] far = {9223372036854775807}, int64[1] rows = {2}, int64[1] columns = {3}, int64[1] two = {2}""",
        ("br", 5),
    )
    check(proto, kernels=5 + 4, convolutions=2)


# --- attention and context --------------------------------------------------------------------------------------------


def test_cbam_fixes_what_it_reduces_across_channels_and_frees_the_rest() -> None:
    proto = net(
        """
        ap = GlobalAveragePool(a)
        mp = GlobalMaxPool(a)
        a1 = Conv(ap, w2)
        a2 = Relu(a1)
        a3 = Conv(a2, w3)
        m1 = Conv(mp, w2)
        m2 = Relu(m1)
        m3 = Conv(m2, w3)
        am = Add(a3, m3)
        gate = Sigmoid(am)
        b = Mul(a, gate)
        mean = ReduceMean<axes = [1]>(b)
        max = ReduceMax<axes = [1]>(b)
        j = Concat<axis = 1>(mean, max)
        s = Conv<pads = [3,3,3,3]>(j, w4)
        sg = Sigmoid(s)
        c = Mul(b, sg)
        d = Conv(c, w5)
        dr = Relu(d)""",
        """float[3,6,1,1] w2, float[6,3,1,1] w3, float[1,2,7,7] w4,
        float[4,6,1,1] w5""",
        ("dr", 4),
        stem=6,
    )
    # Both hidden layers of the channel attention read the same weight, but each has its own three channels.
    reasons = check(proto, kernels=2 + 2 + 3, convolutions=3, silence=False)
    assert reasons["s"] == "it has one kernel only, and one must stay"
    for name in ("a", "a3", "m3"):
        assert "reduced across channels by ReduceMean" in reasons[name]


def test_eca_fixes_the_channels_that_its_convolution_runs_over() -> None:
    proto = net(
        """
        g = GlobalAveragePool(a)
        q = Squeeze(g, three)
        t = Transpose<perm = [0,2,1]>(q)
        e = Conv<pads = [1,1]>(t, w2)
        u = Transpose<perm = [0,2,1]>(e)
        v = Unsqueeze(u, three)
        gate = Sigmoid(v)
        m = Mul(a, gate)
        b = Conv(m, w3)
        br = Relu(b)""",
        "float[1,1,3] w2, float[4,6,1,1] w3, int64[1] three = {3}",
        ("br", 4),
        stem=6,
    )
    reasons = check(proto, kernels=3, convolutions=1)
    assert "mixes its values along another axis" in reasons["a"]


def test_an_aspp_image_branch_may_be_resized_to_literal_sizes() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv(ar, w2, b2)
        c = Conv<pads = [2,2,2,2], dilations = [2,2]>(ar, w3)
        g = GlobalAveragePool(ar)
        d = Conv(g, w4)
        dr = Relu(d)
        u = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(dr, , , sizes)
        j = Concat<axis = 1>(b, c, u)
        r = Relu(j)
        e = Conv(r, w5)
        er = Relu(e)""",
        """float[3,6,1,1] w2, float[3] b2, float[3,6,3,3] w3, float[2,6,1,1] w4,
        float[5,8,1,1] w5, int64[4] sizes = {2,2,8,8}""",
        ("er", 5),
        image="2,3,8,8",
        opset=13,
        stem=6,
    )
    check(proto, kernels=5 + 2 + 2 + 1 + 4, convolutions=5)


def test_sizes_of_a_resize_may_be_computed() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv<strides = [2,2]>(ar, w2, b2)
        shape = Shape(ar)
        space = Slice(shape, two, four)
        own = Shape(b)
        head = Slice(own, zero, two)
        sizes = Concat<axis = 0>(head, space)
        u = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric">(b, , , sizes)
        j = Concat<axis = 1>(ar, u)
        c = Conv(j, w3)
        cr = Relu(c)""",
        """float[3,4,1,1] w2, float[3] b2, float[5,7,1,1] w3, int64[1] zero = {0},
        int64[1] two = {2}, int64[1] four = {4}""",
        ("cr", 5),
        stem=4,
    )
    check(proto, kernels=3 + 2 + 4, convolutions=3)


def test_a_resize_may_name_its_axes() -> None:
    proto = net(
        """
        ar = Relu(a)
        u = Resize<mode = "linear", axes = [1,2,3]>(ar, , , sizes)
        b = Conv(u, w2)
        br = Relu(b)""",
        "float[5,4,1,1] w2, int64[3] sizes = {4,12,12}",
        ("br", 5),
        opset=18,
        stem=4,
    )
    check(proto, kernels=3 + 4, convolutions=2)


def test_queries_and_keys_of_attention_lose_the_same_channels() -> None:
    proto = net(
        """
        q = Conv(a, w2)
        k = Conv(a, w3)
        v = Conv(a, w4)
        qr = Reshape(q, inner)
        kr = Reshape(k, inner)
        vr = Reshape(v, outer)
        qt = Transpose<perm = [0,2,1]>(qr)
        l = MatMul(qt, kr)
        ls = Mul(l, scale)
        s = Softmax<axis = -1>(ls)
        st = Transpose<perm = [0,2,1]>(s)
        o = MatMul(vr, st)
        m = Reshape(o, map)
        b = Conv(m, w5)
        br = Relu(b)""",
        """float[3,6,1,1] w2, float[3,6,1,1] w3, float[5,6,1,1] w4, float[4,5,1,1] w5, float scale = {0.5},
        int64[3] inner = {0,3,64}, int64[3] outer = {0,5,64}, int64[4] map = {0,5,8,8}""",
        ("br", 4),
        stem=6,
    )
    check(proto, kernels=5 + 2 * 2 + 4 + 3, convolutions=5)


@pytest.mark.parametrize(("heads", "width"), [(2, 4), (4, 2)])
def test_the_heads_of_attention_lose_the_same_channels_or_leave_as_a_whole(heads: int, width: int) -> None:
    proto = net(
        """
        qkv = Conv(a, w2, b2)
        r = Reshape(qkv, split)
        t = Transpose<perm = [1,0,2,4,3]>(r)
        q = Gather<axis = 0>(t, i0)
        k = Gather<axis = 0>(t, i1)
        v = Gather<axis = 0>(t, i2)
        kt = Transpose<perm = [0,1,3,2]>(k)
        l = MatMul(q, kt)
        s = Softmax<axis = -1>(l)
        o = MatMul(s, v)
        ot = Transpose<perm = [0,1,3,2]>(o)
        m = Reshape(ot, map)
        b = Conv(m, w3)
        br = Relu(b)""",
        f"""float[24,6,1,1] w2, float[24] b2, float[4,8,1,1] w3, int64[5] split = {{-1,3,{heads},{width},64}},
        int64[4] map = {{-1,8,8,8}}, int64 i0 = {{0}}, int64 i1 = {{1}}, int64 i2 = {{2}}""",
        ("br", 4),
        stem=6,
    )
    # A unit is one channel of all heads, or one head, in each of queries, keys and values: six kernels. Three of four
    # leave.
    check(proto, kernels=5 + 3 * 6 + 3, convolutions=3)


def test_a_global_context_passes_its_channels() -> None:
    proto = net(
        """
        k = Conv(a, w2)
        kr = Reshape(k, row)
        s = Softmax<axis = 2>(kr)
        su = Unsqueeze(s, three)
        r = Reshape(a, rows)
        ru = Unsqueeze(r, one)
        c = MatMul(ru, su)
        cr = Reshape(c, map)
        t = Conv(cr, w3)
        m = Add(a, t)
        b = Conv(m, w4)
        br = Relu(b)""",
        """float[1,6,1,1] w2, float[6,6,1,1] w3, float[4,6,1,1] w4, int64[3] row = {0,1,64}, int64[3] rows = {0,6,64},
        int64[4] map = {0,6,1,1}, int64[1] one = {1}, int64[1] three = {3}""",
        ("br", 4),
        stem=6,
    )
    reasons = check(proto, kernels=5 * 2 + 3, convolutions=3)
    assert reasons == {"k": "it has one kernel only, and one must stay"}


def test_channels_times_channels_are_a_rectangle_that_loses_rows_alone() -> None:
    proto = net(
        """
        p = Conv(a, w2)
        f = Reshape(a, rows)
        g = Reshape(p, columns)
        gt = Transpose<perm = [0,2,1]>(g)
        c = MatMul(f, gt)
        cf = Flatten(c)
        y = Gemm(cf, w3)""",
        "float[3,6,1,1] w2, float[18,5] w3, int64[3] rows = {0,6,64}, int64[3] columns = {0,3,64}",
        stem=6,
    )
    reasons = check(proto, kernels=5, convolutions=1)
    assert reasons == {"p": "MatMul 'MatMul_0' multiplies it by other channels"}


def test_attention_between_channels_fixes_them() -> None:
    proto = net(
        """
        f = Reshape(a, rows)
        ft = Transpose<perm = [0,2,1]>(f)
        e = MatMul(f, ft)
        s = Softmax<axis = -1>(e)
        o = MatMul(s, f)
        m = Reshape(o, map)
        b = Conv(m, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2, int64[3] rows = {0,6,64}, int64[4] map = {0,6,8,8}",
        ("br", 4),
        stem=6,
    )
    reasons = check(proto, kernels=3, convolutions=1)
    assert reasons == {"a": "MatMul 'MatMul_0' multiplies it by other channels"}


def test_a_dense_layer_along_the_pixels_passes_the_channels() -> None:
    """The token mixing of an MLP-Mixer."""
    proto = net(
        """
        r = Reshape(a, rows)
        p = MatMul(r, w2)
        pb = Add(p, b2)
        g = Relu(pb)
        q = MatMul(g, w3)
        s = Add(q, r)
        m = Reshape(s, map)
        b = Conv(m, w4)
        br = Relu(b)""",
        """float[64,12] w2, float[12] b2, float[12,64] w3, float[4,6,1,1] w4, int64[3] rows = {0,6,64},
        int64[4] map = {0,6,8,8}""",
        ("br", 4),
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2, silence=False)


def test_channels_that_meet_another_matrix_than_one_behind_them_stay() -> None:
    for use, weight in (
        ("m = MatMul(w2, r)", "float[7,6] w2"),
        ("t = Transpose<perm = [0,2,1]>(r) p = MatMul(t, w2) m = Transpose<perm = [0,2,1]>(p)", "float[1,6,7] w2"),
    ):
        proto = net(
            f"""
            r = Reshape(a, rows)
            {use}
            u = Reshape(m, map)
            b = Conv(u, w3)
            br = Relu(b)""",
            f"{weight}, float[4,7,1,1] w3, int64[3] rows = {{0,6,64}}, int64[4] map = {{0,7,8,8}}",
            ("br", 4),
            stem=6,
        )
        reasons = check(proto, kernels=3, convolutions=1)
        assert reasons == {"a": "MatMul 'MatMul_0' multiplies it by weights that are not one matrix behind it"}


# --- activations and biases in pieces ---------------------------------------------------------------------------------


def test_hard_swish_may_come_in_pieces() -> None:
    proto = net(
        """
        s = Add(a, three)
        c = Clip(s, zero, six)
        m = Mul(a, c)
        h = Div(m, six)
        b = Conv(h, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2, float three = {3.0}, float zero = {0.0}, float six = {6.0}",
        ("br", 4),
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_a_bias_may_be_added_as_a_reshaped_constant() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1)
        br1 = Reshape(b1, shape)
        s = Add(a, br1)
        r = Relu(s)
        b = Conv(r, w2)
        br2 = Reshape(b2, minus)
        t = Add(br2, b)
        q = Relu(t)""",
        """float[6,3,3,3] w1, float[6] b1, float[4,6,1,1] w2, float[4] b2, int64[4] shape = {1,6,1,1},
        int64[3] minus = {-1,1,1}""",
        ("q", 4),
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_batch_normalization_may_stand_before_the_convolution() -> None:
    proto = net(
        """
        n1 = BatchNormalization(a, s1, h1, m1, var1)
        r1 = Relu(n1)
        b = Conv<pads = [1,1,1,1]>(r1, w2)
        n2 = BatchNormalization(b, s2, h2, m2, var2)
        r2 = Relu(n2)
        c = Conv<pads = [1,1,1,1]>(r2, w3)
        t = Add(c, a)
        n3 = BatchNormalization(t, s3, h3, m3, var3)
        r3 = Relu(n3)""",
        """float[6,4,3,3] w2, float[4,6,3,3] w3,
        float[4] s1, float[4] h1, float[4] m1, float[4] var1, float[6] s2, float[6] h2, float[6] m2, float[6] var2,
        float[4] s3, float[4] h3, float[4] m3, float[4] var3""",
        ("r3", 4),
        stem=4,
    )
    check(proto, kernels=3 * 2 + 5, convolutions=3)


def test_batch_normalizations_may_feed_a_sum_without_activation() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1)
        n1 = BatchNormalization(a, s1, h1, m1, var1)
        b = Conv(x, w2)
        n2 = BatchNormalization(b, s2, h2, m2, var2)
        n3 = BatchNormalization(a, s2, h1, m1, var2)
        t = Sum(n1, n2, n3)""",
        """float[4,3,3,3] w1, float[4,3,1,1] w2, float[4] s1, float[4] h1, float[4] m1, float[4] var1,
        float[4] s2, float[4] h2, float[4] m2, float[4] var2""",
        ("t", 4),
    )
    check(proto, kernels=3 * 2, convolutions=2)


def test_batch_normalization_may_come_in_pieces_with_unsqueezed_constants() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1)
        mu = Unsqueeze(m1, space)
        c = Sub(a, mu)
        root = Sqrt(var1)
        inverse = Reciprocal(root)
        scale = Mul(inverse, s1)
        su = Unsqueeze(scale, space)
        s = Mul(c, su)
        hu = Unsqueeze(h1, space)
        t = Add(s, hu)
        r = Relu(t)
        b = Conv(r, w2)
        br = Relu(b)""",
        """float[6,3,3,3] w1, float[4,6,1,1] w2, float[6] m1, float[6] var1, float[6] s1, float[6] h1,
        int64[2] space = {1,2}""",
        ("br", 4),
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_a_scale_and_a_shift_may_follow_batch_normalization() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1)
        n = BatchNormalization(a, s1, h1, m1, var1)
        g = Unsqueeze(gamma, space)
        c = Mul(n, g)
        e = Unsqueeze(beta, space)
        t = Add(e, c)
        r = Relu(t)
        b = Conv(r, w2)
        br = Relu(b)""",
        """float[6,3,3,3] w1, float[4,6,1,1] w2, float[6] s1, float[6] h1, float[6] m1, float[6] var1, float[6] gamma,
        float[6] beta, int64[2] space = {1,2}""",
        ("br", 4),
    )
    check(proto, kernels=5 + 3, convolutions=2)


# --- normalisation across channels ------------------------------------------------------------------------------------


def test_lrn_fixes_what_it_normalises() -> None:
    proto = net(
        """
        ar = Relu(a)
        n = LRN<size = 3, alpha = 0.1>(ar)
        b = Conv(n, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2",
        ("br", 4),
        stem=6,
    )
    reasons = check(proto, kernels=3, convolutions=1)
    assert reasons == {"a": "it is normalised across channels by LRN 'LRN_0'"}


def test_layer_normalization_fixes_what_it_normalises() -> None:
    proto = net(
        """
        t = Transpose<perm = [0,2,3,1]>(a)
        n = LayerNormalization(t, s1, h1)
        u = Transpose<perm = [0,3,1,2]>(n)
        b = Conv(u, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2, float[6] s1, float[6] h1",
        ("br", 4),
        stem=6,
    )
    reasons = check(proto, kernels=3, convolutions=1)
    assert reasons == {"a": "it is normalised across channels by LayerNormalization 'LayerNormalization_0'"}


def test_layer_normalization_in_pieces_fixes_what_it_normalises() -> None:
    proto = net(
        """
        mean = ReduceMean<axes = [1]>(a)
        d = Sub(a, mean)
        sq = Pow(d, two)
        v = ReduceMean<axes = [1]>(sq)
        ve = Add(v, tiny)
        sd = Sqrt(ve)
        n = Div(d, sd)
        s = Mul(n, s1)
        t = Add(s, h1)
        b = Conv(t, w2)
        br = Relu(b)""",
        """float[4,6,1,1] w2, float[6,1,1] s1, float[6,1,1] h1, float two = {2.0},
        float tiny = {0.00001}""",
        ("br", 4),
        stem=6,
    )
    reasons = check(proto, kernels=3, convolutions=1)
    assert reasons == {"a": "it is reduced across channels by ReduceMean 'ReduceMean_0'"}


def test_layer_normalization_over_space_alone_fixes_nothing() -> None:
    proto = net(
        """
        n = LayerNormalization<axis = 2>(a, s1)
        r = Relu(n)
        b = Conv(r, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2, float[8,8] s1",
        ("br", 4),
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_group_normalization_loses_whole_groups() -> None:
    proto = net(
        """
        n = GroupNormalization<num_groups = 4>(a, s1, h1)
        r = Relu(n)
        b = Conv(r, w2)
        br = Relu(b)""",
        "float[5,8,1,1] w2, float[8] s1, float[8] h1",
        ("br", 5),
        opset=21,
        ir_version=10,
        stem=8,
    )
    # The two kernels of a group share one mean and one deviation.
    check(proto, kernels=3 * 2 + 4, convolutions=2)


def test_the_group_normalization_that_onnx_has_withdrawn_is_refused(tmp_path: Path) -> None:
    proto = net(
        """
        n = GroupNormalization<num_groups = 4>(a, s1, h1)""",
        "float[4] s1, float[4] h1",
        ("n", 8),
        opset=18,
        stem=8,
    )
    with pytest.raises(ha.HOperatorError, match="opset 18, which ONNX has withdrawn") as caught:
        ha.read_dl_model(saved(proto, tmp_path / "withdrawn.onnx"))
    assert caught.value.error_code == ha.errors.H_ERR_DL_READ_ONNX


def test_group_normalization_by_instances_loses_whole_groups() -> None:
    proto = net(
        """
        shape = Shape(a)
        s = Reshape(a, split)
        n = InstanceNormalization(s, ones, zeros)
        m = Reshape(n, shape)
        c = Mul(m, s1)
        d = Add(c, h1)
        r = Relu(d)
        b = Conv(r, w2)
        br = Relu(b)""",
        """float[5,8,1,1] w2, float[4] ones = {1.0,1.0,1.0,1.0},
        float[4] zeros = {0.0,0.0,0.0,0.0}, float[8,1,1] s1, float[8,1,1] h1, int64[3] split = {0,4,-1}""",
        ("br", 5),
        stem=8,
    )
    check(proto, kernels=3 * 2 + 4, convolutions=2)


def test_one_group_over_all_channels_fixes_them() -> None:
    proto = net(
        """
        n = GroupNormalization<num_groups = 1>(a, s1, h1)
        b = Conv(n, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2, float[6] s1, float[6] h1",
        ("br", 4),
        opset=21,
        ir_version=10,
        stem=6,
    )
    reasons = check(proto, kernels=3, convolutions=1)
    assert "normalised across channels by GroupNormalization" in reasons["a"]


def test_the_expansion_of_a_conv_next_block_is_free() -> None:
    proto = net(
        """
        a = Conv<strides = [2,2], kernel_shape = [2,2]>(x, w1, b1)
        d = Conv<group = 4, pads = [3,3,3,3]>(a, w2, b2)
        t = Transpose<perm = [0,2,3,1]>(d)
        n = LayerNormalization(t, s1, h1)
        u = Transpose<perm = [0,3,1,2]>(n)
        e = Conv(u, w3, b3)
        ge = Gelu(e)
        p = Conv(ge, w4, b4)
        ls = Mul(gamma, p)
        o = Add(a, ls)""",
        """float[4,3,2,2] w1, float[4] b1, float[4,1,7,7] w2, float[4] b2, float[4] s1, float[4] h1,
        float[16,4,1,1] w3, float[16] b3, float[4,16,1,1] w4, float[4] b4, float[4,1,1] gamma""",
        ("o", 4),
        opset=20,
        ir_version=9,
    )
    reasons = check(proto, kernels=15, convolutions=1)
    assert set(reasons) == {"a", "d", "p"}
    assert all("normalised across channels by LayerNormalization" in reason for reason in reasons.values())


def test_the_expansion_of_a_conv_next_block_is_no_matter_of_kernels_if_it_is_dense() -> None:
    proto = net(
        """
        a = Conv<strides = [2,2], kernel_shape = [2,2]>(x, w1, b1)
        d = Conv<group = 4, pads = [3,3,3,3]>(a, w2, b2)
        t = Transpose<perm = [0,2,3,1]>(d)
        n = LayerNormalization(t, s1, h1)
        e = MatMul(n, w3)
        eb = Add(e, b3)
        ge = Gelu(eb)
        p = MatMul(ge, w4)
        pb = Add(p, b4)
        u = Transpose<perm = [0,3,1,2]>(pb)
        o = Add(a, u)
        b = Conv(o, w5)
        br = Relu(b)""",
        """float[4,3,2,2] w1, float[4] b1, float[4,1,7,7] w2, float[4] b2, float[4] s1, float[4] h1, float[4,16] w3,
        float[16] b3, float[16,4] w4, float[4] b4, float[5,4,1,1] w5""",
        ("br", 5),
        opset=20,
        ir_version=9,
    )
    reasons = check(proto, kernels=4, convolutions=1)
    assert set(reasons) == {"a", "d"}
    structure = analysis_of(Classifier.from_proto(proto)).structure
    # The sixteen features can leave if the user asks for it; the four that are added to the trunk stay with it.
    assert int(structure.features.sum()) == 16


def test_softmax_over_channels_fixes_them_and_over_space_does_not() -> None:
    proto = net(
        """
        sa = Softmax<axis = 3>(a)
        b = Conv(sa, w2)
        sb = Softmax<axis = 1>(b)
        c = Conv(sb, w3)
        cr = Relu(c)""",
        "float[4,6,1,1] w2, float[3,4,1,1] w3",
        ("cr", 3),
        stem=6,
    )
    reasons = check(proto, kernels=5 + 2, convolutions=2, silence=False)
    assert "normalised across channels by Softmax" in reasons["b"]


def test_a_sum_over_channels_is_exact() -> None:
    proto = net(
        """
        ar = Relu(a)
        one = Constant<value_ints = [1]>()
        s = ReduceSum(ar, one)
        b = Conv(s, w2)
        br = Relu(b)""",
        "float[4,1,1,1] w2",
        ("br", 4),
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2)


def test_a_norm_over_channels_is_exact() -> None:
    proto = net(
        """
        ar = Relu(a)
        g = GlobalAveragePool(ar)
        f = Flatten(g)
        n = ReduceL2<axes = [1]>(f)
        u = Div(f, n)
        y = Gemm(u, w2, b2)""",
        "float[6,5] w2, float[5] b2",
        stem=6,
    )
    check(proto, kernels=5, convolutions=1)


# --- weights that are computed ----------------------------------------------------------------------------------------


def test_a_weight_may_be_computed_from_constants() -> None:
    proto = net(
        """
        half = Constant<value_float = 0.5>()
        wa = Mul(w1, half)
        a = Conv<pads = [1,1,1,1]>(x, wa, b1)
        ar = Relu(a)
        shape = Shape(w2)
        four = Slice(shape, zero, one)
        bb = Expand(b2, four)
        b = Conv(ar, w2, bb)
        br = Relu(b)""",
        "float[6,3,3,3] w1, float[6] b1, float[4,6,1,1] w2, float b2, int64[1] zero = {0}, int64[1] one = {1}",
        ("br", 4),
    )
    check(proto, kernels=5 + 3, convolutions=2, silence=False)


def test_a_residual_trunk_may_pass_a_transpose() -> None:
    proto = net(
        """
        at = Transpose<perm = [0,2,3,1]>(a)
        b = Conv(x, w2)
        bt = Transpose<perm = [0,2,3,1]>(b)
        s = Add(at, bt)
        c = Add(s, shift)
        r = Relu(c)
        u = Transpose<perm = [0,3,1,2]>(r)""",
        "float[5,3,1,1] w2, float[5] shift",
        ("u", 5),
        stem=5,
    )
    check(proto, kernels=4 * 2, convolutions=2, silence=False)


def test_a_dense_layer_of_a_channels_last_map_reads_its_channels() -> None:
    proto = net(
        """
        at = Transpose<perm = [0,2,3,1]>(a)
        m = MatMul(at, w2)
        s = Add(m, b2)
        r = Relu(s)
        u = Transpose<perm = [0,3,1,2]>(r)
        b = Conv(u, w3)
        br = Relu(b)""",
        "float[5,7] w2, float[7] b2, float[4,7,1,1] w3",
        ("br", 4),
        stem=5,
    )
    check(proto, kernels=4 + 3, convolutions=2)


@pytest.mark.parametrize("batch", ["2", "N"])
def test_a_channel_number_that_is_computed_with_stays_what_it_was(batch: str) -> None:
    """After pruning Shape would give another number; the old one is written down."""
    for use in (
        "w = Div(w2, count) b = Conv(a, w)",
        "e = Div(a, count) b = Conv(e, w2)",
        "e = Clip(a, , count) b = Conv(e, w2)",
        "v = Mul(vector, count) e = Mul(a, v) b = Conv(e, w2)",
    ):
        proto = net(
            f"""
            shape = Shape(a)
            n = Gather<axis = 0>(shape, one)
            count = Cast<to = 1>(n)
            {use}
            br = Relu(b)""",
            f"float[4,6,1,1] w2, int64 one = {{1}}{', float[6,1,1] vector' if 'vector' in use else ''}",
            ("br", 4),
            image=f"{batch},3,8,8",
            stem=6,
        )
        check(proto, kernels=5 + 3, convolutions=2, silence=False)


def test_who_computes_with_a_channel_number_and_other_sizes_holds_the_channels() -> None:
    numbers = "shape = Shape(a)"
    for use in (
        "z = ConstantOfShape(shape) e = Concat<axis = 1>(a, z) b = Conv(e, w4)",
        "e = Tile(a, shape) f = Slice(e, zeros, ends) b = Conv(f, w2)",
        "f = Flatten(a) s = Shape<start = 1>(f) count = Cast<to = 1>(s) e = Div(a, count) b = Conv(e, w2)",
    ):
        needed = [line for line in ("float[4,6,1,1] w2", "float[4,12,1,1] w4") if line.split()[1] in use]
        proto = net(
            f"""
            a = Conv<pads = [1,1,1,1]>(x, w1, b1)
            {numbers} {use}
            br = Relu(b)""",
            f"""float[6,3,3,3] w1, float[6] b1, {needed[0]}, int64[4] zeros = {{0,0,0,0}},
            int64[4] ends = {{2,6,8,8}}""",
            ("br", 4),
            image="2,3,8,8",
        )
        reasons = check(proto, kernels=3, convolutions=1, silence=False)
        assert "computes with its channel number" in reasons["a"]


@pytest.mark.parametrize("sizes", ["whole = Shape(a) pixels = Slice(whole, two, four)", "pixels = Shape<start = 2>(a)"])
def test_who_computes_with_the_size_of_the_map_holds_nothing(sizes: str) -> None:
    """A mean as the sum over the number of pixels, and constant channels that are spread over them."""
    proto = net(
        f"""
        {sizes}
        ar = Relu(a)
        number = ReduceProd<keepdims = 0>(pixels)
        count = Cast<to = 1>(number)
        sum = ReduceSum(ar, axes)
        mean = Div(sum, count)
        g = Sub(ar, mean)
        target = Concat<axis = 0>(batch, pixels)
        constant = Expand(level, target)
        j = Concat<axis = 1>(g, constant)
        b = Conv(j, w2)
        br = Relu(b)""",
        f"""float[4,8,1,1] w2, int64[2] axes = {{2,3}}, float[1,2,1,1] level, int64[2] batch = {{2,2}}
        {", int64[1] two = {2}, int64[1] four = {4}" if "Slice" in sizes else ""}""",
        ("br", 4),
        image="2,3,8,8",
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2)


# --- number formats, control flow, foreign operators ------------------------------------------------------------------


def test_a_half_precision_model_is_pruned_in_half_precision() -> None:
    proto = net(
        """
        ar = Relu(a)
        b = Conv(ar, w2)
        n = BatchNormalization(b, s, h, m, var)
        br = Relu(n)""",
        """float[4,6,1,1] w2, float[4] s, float[4] h, float[4] m, float[4] var""",
        ("br", 4),
        stem=6,
    )
    for entry in (*proto.graph.input, *proto.graph.output):
        entry.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    check(proto, kernels=5 + 3, convolutions=2, rtol=2e-3)


QUANTISED = """
        xq = QuantizeLinear(x, sx, zx)
        xd = DequantizeLinear(xq, sx, zx)
        wd = DequantizeLinear(wq, sw, zw)
        a = Conv<pads = [1,1,1,1]>(xd, wd, b1)
        ar = Relu(a)
        aq = QuantizeLinear(ar, sa, za)
        ad = DequantizeLinear(aq, sa, za)
        b = Conv(ad, w2)
        br = Relu(b)"""
QUANTISED_WEIGHTS = """float[6] b1, float[4,6,1,1] w2, float sx = {0.02}, uint8 zx = {128}, float sw = {0.01},
        int8 zw = {0}, float sa = {0.05}, uint8 za = {0},
        int8[6,3,1,1] wq = {1,-2,3,4,-5,6,7,8,-9,10,11,12,13,-14,15,16,17,18}"""


def test_a_quantised_model_is_refused_with_what_to_do_instead() -> None:
    proto = net(QUANTISED, QUANTISED_WEIGHTS, ("br", 4))
    handle = new_handle("dl_model", Classifier.from_proto(proto))
    with pytest.raises(ha.HOperatorError, match="quantise the result") as caught:
        ha.create_dl_pruning(handle, "oracle", [])
    assert caught.value.error_code == ha.errors.H_ERR_DL_MODEL_OPERATOR_UNSUPPORTED


def test_quantised_weights_alone_are_pruned() -> None:
    proto = net(
        """
        w1 = DequantizeLinear<axis = 0>(wq, sw, zw)
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        b = Conv(ar, w2)
        br = Relu(b)""",
        """float[6] b1, float[4,6,1,1] w2, float[6] sw = {0.1,0.2,0.3,0.1,0.2,0.3}, int8[6] zw = {0,0,0,0,0,0},
        int8[6,3,1,1] wq = {1,-2,3,4,-5,6,7,8,-9,10,11,12,13,-14,15,16,17,18}""",
        ("br", 4),
    )
    check(proto, kernels=5 + 3, convolutions=2, silence=False)


def test_what_a_branch_reads_stays_and_the_rest_is_free() -> None:
    proto = net(
        """
        m = ReduceMax<keepdims = 0>(x)
        bright = Greater(m, zero)
        c = If(bright) <
            then_branch = bright_net () => (float[N,6,8,8] t) { t = Relu(a) },
            else_branch = dark_net () => (float[N,6,8,8] e) { e = Neg(a) }
        >
        b = Conv(c, w2)
        br = Relu(b)
        d = Conv(br, w3)
        dr = Relu(d)""",
        "float[4,6,1,1] w2, float[3,4,1,1] w3, float zero = {0.0}",
        ("dr", 3),
        stem=6,
    )
    reasons = check(proto, kernels=3 + 2, convolutions=2, silence=False)
    assert reasons == {"a": "it is read inside the control flow of If 'If_0'"}


def test_what_a_loop_reads_stays_and_the_rest_is_free() -> None:
    proto = net(
        """
        l = Loop(three, yes, a) <
            body = one_turn (int64 i, bool go, float[N,6,8,8] before) => (bool on, float[N,6,8,8] after) {
                on = Identity(go)
                after = Tanh(before)
            }
        >
        b = Conv(l, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2, int64 three = {3}, bool yes = {1}, float[2,6,8,8] l",
        ("br", 4),
        image="2,3,8,8",
        stem=6,
    )
    reasons = check(proto, kernels=3, convolutions=1, silence=False)
    assert reasons == {"a": "the operator of Loop 'Loop_0' is not known"}


def test_what_a_scan_reads_stays_and_the_rest_is_free() -> None:
    proto = net(
        """
        last, all = Scan(start, a) <
            num_scan_inputs = 1, scan_input_axes = [2], scan_output_axes = [2],
            body = one_row (float[2,6,8] sum, float[2,6,8] row) => (float[2,6,8] next, float[2,6,8] out) {
                next = Add(sum, row)
                out = Identity(next)
            }
        >
        b = Conv(all, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2, float[2,6,8] start",
        ("br", 4),
        image="2,3,8,8",
        stem=6,
    )
    reasons = check(proto, kernels=3, convolutions=1, silence=False)
    assert reasons == {"a": "the operator of Scan 'Scan_0' is not known"}


def test_what_a_foreign_operator_reads_stays_and_the_rest_is_free() -> None:
    proto = net(
        """
        ar = Relu(a)
        g = com.microsoft.QuickGelu(ar)
        b = Conv(ar, w2)
        c = Conv(g, w3)
        s = Concat<axis = 1>(b, c)
        r = Relu(s)""",
        "float[4,6,1,1] w2, float[3,6,1,1] w3, float[N,6,8,8] g",
        ("r", 7),
        imports=', "com.microsoft" : 1',
        stem=6,
    )
    # The file says what shape the foreign operator gives.
    reasons = check(proto, kernels=3 + 2, convolutions=2, silence=False)
    assert reasons == {"a": "the operator of QuickGelu 'QuickGelu_0' is not known"}


def test_nothing_is_free_behind_a_foreign_operator_of_unknown_shape() -> None:
    proto = net(
        """
        g = com.microsoft.QuickGelu(a)
        b = Conv(g, w2)
        br = Relu(b)""",
        "float[4,6,1,1] w2",
        ("br", 4),
        imports=', "com.microsoft" : 1',
        stem=6,
    )
    handle = new_handle("dl_model", Classifier.from_proto(proto))
    with pytest.raises(ha.HOperatorError, match="None of the 2 convolutions") as caught:
        ha.create_dl_pruning(handle, "oracle", [])
    assert caught.value.error_code == ha.errors.H_ERR_DL_PRUNING_UNSUPPORTED_BY_CNN
    message = caught.value.extended_error_message
    assert "the operator of QuickGelu 'QuickGelu_0' is not known" in message
    assert "the shape of the output of Conv 'Conv_1' is not known" in message


def test_a_function_of_the_file_is_looked_into() -> None:
    proto = net(
        """
        ar = own.swish(a)
        b = Conv(ar, w2)
        br = own.swish(b)""",
        "float[4,6,1,1] w2",
        ("br", 4),
        imports=', "own" : 1',
        functions="""<domain: "own", opset_import: ["" : 17]>
        swish (v) => (w) { s = Sigmoid(v) w = Mul(v, s) }""",
        stem=6,
    )
    check(proto, kernels=5 + 3, convolutions=2)
