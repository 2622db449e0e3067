"""Every structure that classifiers are made of: how many kernels can leave, worked out by hand, and exactly so."""

from __future__ import annotations

from structures import check, net

# --- chains and residuals ---------------------------------------------------------------------------------------------


def test_each_convolution_of_a_plain_chain_keeps_one_kernel() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        c = Conv<pads = [1,1,1,1]>(ar, w2)
        cr = Relu(c)""",
        "float[8,3,3,3] w1, float[8] b1, float[6,8,3,3] w2",
        ("cr", 6),
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
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        b = Conv<pads = [1,1,1,1]>(ar, w2, b2)
        br = Relu(b)
        c = Conv<pads = [1,1,1,1]>(br, w3)
        s = Add(c, ar)
        sr = Relu(s)""",
        "float[8,3,3,3] w1, float[8] b1, float[6,8,3,3] w2, float[6] b2, float[8,6,3,3] w3",
        ("sr", 8),
    )
    check(proto, kernels=7 * 2 + 5, convolutions=3)


def test_a_residual_stage_is_coupled_with_its_projection() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
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
        """float[4,3,3,3] w1, float[4] b1, float[6,4,3,3] w2, float[6] b2, float[6,6,3,3] w3, float[6,4,1,1] w4,
        float[6] b4, float[7,6,3,3] w5, float[6,7,3,3] w6, float[6] b6""",
        ("tr", 6),
    )
    check(proto, kernels=3 + 5 + 5 * 3 + 6, convolutions=6)


def test_dense_blocks_read_each_layer_several_times() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
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
        """float[4,3,3,3] w1, float[4] b1, float[3,4,3,3] w2, float[3,7,3,3] w3, float[5,10,1,1] w4,
        float[4] s1, float[4] h1, float[4] m1, float[4] var1, float[7] s2, float[7] h2, float[7] m2, float[7] var2,
        float[10] s3, float[10] h3, float[10] m3, float[10] var3""",
        ("dr", 5),
    )
    check(proto, kernels=3 + 2 + 2 + 4, convolutions=4)


def test_the_expansion_of_an_inverted_residual_leaves_with_its_depthwise_kernels() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        e = Conv(a, w2)
        en = BatchNormalization(e, s1, h1, m1, var1)
        er = Clip(en, zero, six)
        d = Conv<group = 12, pads = [1,1,1,1]>(er, w3)
        dn = BatchNormalization(d, s2, h2, m2, var2)
        dr = Clip(dn, zero, six)
        p = Conv(dr, w4, b4)
        t = Add(a, p)""",
        """float[4,3,3,3] w1, float[4] b1, float[12,4,1,1] w2, float[12,1,3,3] w3, float[4,12,1,1] w4, float[4] b4,
        float[12] s1, float[12] h1, float[12] m1, float[12] var1,
        float[12] s2, float[12] h2, float[12] m2, float[12] var2, float zero = {0.0}, float six = {6.0}""",
        ("t", 4),
    )
    check(proto, kernels=3 * 2 + 11 * 2, convolutions=4)


# --- grouped convolutions ---------------------------------------------------------------------------------------------


def test_a_channel_leaves_with_both_kernels_of_a_depthwise_multiplier_of_two() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        d = Conv<group = 4, pads = [1,1,1,1]>(ar, w2, b2)
        dr = Relu(d)
        p = Conv(dr, w3)
        pr = Relu(p)""",
        "float[4,3,3,3] w1, float[4] b1, float[8,1,3,3] w2, float[8] b2, float[6,8,1,1] w3",
        ("pr", 6),
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
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        g = Conv<group = 2, pads = [1,1,1,1]>(ar, w2, b2)
        gr = Relu(g)
        p = Conv(gr, w3)
        pr = Relu(p)""",
        "float[8,3,3,3] w1, float[8] b1, float[6,4,3,3] w2, float[6] b2, float[4,6,1,1] w3",
        ("pr", 4),
    )
    check(proto, kernels=3 * 2 + 2 * 2 + 3, convolutions=3)


# --- gates ------------------------------------------------------------------------------------------------------------


def test_squeeze_and_excitation_by_convolutions_is_coupled_with_its_trunk() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        g = GlobalAveragePool(a)
        s = Conv(g, w2, b2)
        sr = Relu(s)
        e = Conv(sr, w3, b3)
        eg = Sigmoid(e)
        m = Mul(a, eg)
        c = Conv(m, w4)
        cr = Relu(c)""",
        """float[8,3,3,3] w1, float[8] b1, float[3,8,1,1] w2, float[3] b2, float[8,3,1,1] w3, float[8] b3,
        float[4,8,1,1] w4""",
        ("cr", 4),
    )
    check(proto, kernels=7 * 2 + 2 + 3, convolutions=4)


def test_squeeze_and_excitation_by_gemms_leaves_with_its_trunk() -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        g = GlobalAveragePool(a)
        f = Flatten(g)
        s = Gemm(f, w2, b2)
        sr = Relu(s)
        e = Gemm(sr, w3, b3)
        eg = Sigmoid(e)
        er = Reshape(eg, shape)
        m = Mul(a, er)""",
        """float[8,3,3,3] w1, float[8] b1, float[8,3] w2, float[3] b2, float[3,8] w3, float[8] b3,
        int64[4] shape = {-1,8,1,1}""",
        ("m", 8),
    )
    check(proto, kernels=7, convolutions=1)
