//! Pins the bytes of channel version 1 in every scheme: the vectors of docs/protocol.md, which were computed by an
//! independent implementation from the specification alone.

use std::sync::Arc;

use strongroom_block::{Buffer, CryptoCounters, Suite};
use strongroom_channel::{Channel, ChannelKeys, ChannelLimits, FrameKind, Scheme};

fn keys(scheme: Scheme) -> ChannelKeys {
    ChannelKeys::new(std::array::from_fn(|at| at as u8), scheme)
}

fn hex(buffers: &[Buffer]) -> String {
    buffers.iter().flat_map(|buffer| buffer.iter().map(|byte| format!("{byte:02x}"))).collect()
}

#[test]
fn the_wire_is_as_specified() {
    let counters = Arc::new(CryptoCounters::new());
    let limits = ChannelLimits { rekey_tags: 2, ..ChannelLimits::default() };
    let mut wire = Vec::new();
    let mut target = Channel::target(keys(Scheme::Lazy), limits, counters.clone(), &mut wire);
    assert_eq!(hex(&wire), "5300001000000000ca96d45f4e41beabc3f2ee2251bb84ac8f87fbcf0e2aace97c1ba6e87df5fd21");

    let mut initiator = Channel::initiator(keys(Scheme::Lazy), limits, counters);
    initiator.handle_input(&wire[0]).unwrap();
    wire.clear();
    initiator.encode(FrameKind::Protected, b"header", Buffer::copy_from(b"data"), &mut wire).unwrap();
    initiator.encode(FrameKind::Sealed, b"header", Buffer::copy_from(b"sealed data"), &mut wire).unwrap();
    // The limit of two frames is reached: the next one comes with new keys.
    initiator.encode(FrameKind::Protected, b"header", Buffer::empty(), &mut wire).unwrap();
    initiator.close(&mut wire);
    let golden = [
        "51000006000000045973a9749669c142d76ee6f25d99cab90ee4641cfc6476b487e2",
        "520000060000000baf2b7079dd2242dc13da303f61e53ce4cfb6028dceed",
        "7365616c65642064617461",
        "54000000000000000dc19abcb50a0cc3c44ab4ce5ea1b5f9",
        "51010006000000009b6c2fb917447a2491b15279058b1d36d24c015a1fbd",
        "55010000000000007a6d4789403ea3925b63004b66165b67",
    ];
    assert_eq!(wire.iter().map(|part| hex(std::slice::from_ref(part))).collect::<Vec<_>>(), golden);

    for part in &wire {
        let mut rest = &part[..];
        while !rest.is_empty() {
            rest = &rest[target.handle_input(rest).unwrap()..];
            if let Some(frame) = target.poll_frame() {
                assert_eq!(&frame.header[..], b"header");
            }
        }
    }
    assert!(target.is_closed_by_peer());
}

/// The confirmation, a login, a PDU without sealed block data, and one with it.
#[test]
fn every_scheme_is_as_specified() {
    let golden = [
        (
            Scheme::MacAll,
            [
                "530000100000000065e0b86e6dfa9bde40dc5e007f8bf3d1385cc783b99d0f9138b70e900563725f",
                "5100003400000004b0b6e193c0a85bcf1d1734d85807637f016e587bf68f3bbe01ae6510b8140e25bf7160c6ce1046224ee6acebab2fd80e382ab74bfbcbcd3990f99260679a10948769fbeb7b0ce0f5",
                "5800003400000004000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f6f6dc946c37d8d4061d8747a8e88edeaa285361164617461fc99fd17efcbf914d1305419ef121dcd",
                "5900003400000004000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2fec314094bd98d606b2fb90041fd028cbe107acb064617461b9222a4a69947e488f5619b3b3b666c2",
            ],
        ),
        (
            Scheme::LazyAuth,
            [
                "5300001000000000892c7400ec7f1c06a0f5a96245b1354101164aac743e1035d2830c28e577de74",
                "5100003400000004e9979fc7e86942b89971c2f6746ec8eb24b5bfa1086fc393c5926107681ded8c511736d845e6137201fb7b4446b2935b43d31879588fd871c990af2bfb6793b4b4292202b7445d5b",
                "5800003400000004000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2ff535191caba76143772c6788984aef565460246964617461d30fca3764e624f24a490de90fbeed18",
                "5a00003400000004000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f673166007cd094c54a0b0582cfe2734f4292345a64617461",
            ],
        ),
        (
            Scheme::EncryptAll,
            [
                "5300001000000000a19f622174c78289e76b27919848aac75f562a1283374550b4f4189c8f76d4d6",
                "51000034000000041d90a0770a38f9039635b685ed3f9d02e360e018629fcd9959ab9b45ceb56b01aab30244e326a7276a353cdefd0053e81dd9fb3d064083f84976d1764ad9bd8bde43f1c55c2157eb",
                "51000034000000041f48c89a6a509c003de383a22afabf3b3e2c7d2579d40b24e1abb3f0ef82a04ac21e4872ef085f70c5c561e8b9ace4264f1cbfa0d3a0ca3a2a222ba69aaf1de029d7f7914ae826c3",
                "56000034000000044fc632524c1c33da051d7fcc1738a77db38d926d3e8c997b496479b4e015b37069e6677bb470943c2184757b8ec665d37cfc7acb29736b8de32957782e6f6b5078ca621f6fc0428b",
            ],
        ),
        (
            Scheme::LazyDecrypt,
            [
                "53000010000000006c8d324bdb24ef4a08a4dd3cb8c9f7ceab402d057c13dc03d110d51cf60ddf20",
                "51000034000000046fa8e5e9e6fc5d0b30e414b179216c764971a1816bffd573a0bcd89250f957f16e6a96fe664faa54fc6213e539a0bfdadab8039bcbbbb8c6ce378305420e75576443a4f1f1ec4df3",
                "510000340000000433ca96c0bbfa4083c5203f246fc39109a60df9ab998db8185d3e9b2957d79bedb635b4c415985b3e2990ba42f4483fe4f4a7ec3b389b257e7cbc1c743ed39e4efd19621e5693b233",
                "5700003400000004fcf8b1aaf8f24ddb5c7ab529b420ec3ed9b5ad7aafdbc655098e02d1929f8a715b5053d2cc1d2854fb571545c52897fa9534aaf6c16ead907b0ef36d5f5c9ce04a76c606646174614a54e3677d85f328af718d48752371d2",
            ],
        ),
        (
            Scheme::Lazy,
            [
                "5300001000000000ca96d45f4e41beabc3f2ee2251bb84ac8f87fbcf0e2aace97c1ba6e87df5fd21",
                "51000034000000043117ca13f71ea324ab066482b6f458426e136c5bc17c2a46c2df69c64216ee3219b1f771265556c9fd77f5a461186eb1ba6891f35bfab78ec52821f49a7807446994df1b85af02d2",
                "5100003400000004c74f131ebc551db6b3d2a8c3ce95c1cb3cc449caf47d606ee2da23302a9c96af807b3015ae6cbaf103eb0ffe7a3b0659ffd5e80acc223681f7d7227d479661fada95640687e76896",
                "52000034000000044c28e3e1207a5b5e1793d1ab4e98298ecea7ef03de0a8bd92db38344ba758a894a3b5843e54df419c1e64dd79ed005451790f0373c86dc15c52c919d59b31e118f22207364617461",
            ],
        ),
    ];
    assert_eq!(golden.each_ref().map(|(scheme, _)| *scheme)[..], *Scheme::ALL);
    for (scheme, golden) in golden {
        let counters = Arc::new(CryptoCounters::new());
        let mut wire = Vec::new();
        Channel::target(keys(scheme), ChannelLimits::default(), counters.clone(), &mut wire);
        let mut initiator = Channel::initiator(keys(scheme), ChannelLimits::default(), counters);
        initiator.handle_input(&wire[0]).unwrap();
        let mut frames = vec![hex(&wire)];
        let header: Vec<u8> = (0..48).chain(*b"keys").collect();
        for kind in [FrameKind::Private, FrameKind::Protected, FrameKind::Sealed] {
            let mut frame = Vec::new();
            initiator.encode(kind, &header, Buffer::copy_from(b"data"), &mut frame).unwrap();
            frames.push(hex(&frame));
        }
        assert_eq!(frames, golden, "{scheme}");
    }
}

/// After what the test before sends: REKEY, block data under the new keys, CLOSE; and the target's answer with block data, behind
/// its confirmation.
#[test]
fn every_scheme_changes_keys_as_specified() {
    let golden = [
        (
            Scheme::MacAll,
            [
                "540000000000000082db85d65f1050957263e981e92e0d43",
                "5901003400000004000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f14641a5559f16de0b5081cd0f8f5bcb8b9a5f4a064617461cc33f22b722246aae0aff01371c6652a",
                "5501000000000000a64e6a4a8eab0c04806aee91af7ffaf0",
                "5900003400000004000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f509d54ab8d5ab70799ee95117cd165cdd137ddd964617461e13f9bd12551ff8826ad79e1245b67bd",
            ],
        ),
        (
            Scheme::LazyAuth,
            [
                "54000000000000000922adfd2a35c3a16fbda67041cb0a37",
                "5a01003400000004000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f2198581bfd980df6c4dc9129f3d6d935fb98d93964617461",
                "5501000000000000a68ce42dc06b85a25311614c9080068c",
                "5a00003400000004000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2fc10536ec4267bd1335bc9d18c1bbe6edf82846b264617461",
            ],
        ),
        (
            Scheme::EncryptAll,
            [
                "5400000000000000a97192e60f245eabc1843498a1e69166",
                "5601003400000004cbb779d93fd9303f1bf45415c23687457ce0bc06c878cda8fe11c8a2361f8d3f14c076bf7f919fb83182870c0b201fe131a03273e197fdffb4fa7e258fc93f52ccb885679de7eb17",
                "550100000000000026410717d9c9bf0d0a0fca509c9244b6",
                "56000034000000047d2d767b970a66b319a92aadb2f1062705ee1e0bc410bbabc4e6c632fbcf677a5fc5bc9f2fb739af7920824b1a113d2d8e12e62093841e387b1fd7a8a7a2971aff263480b8ff4c67",
            ],
        ),
        (
            Scheme::LazyDecrypt,
            [
                "54000000000000006f1139bca71cff6f37ff6589f9f6a467",
                "570100340000000451dd6c13dc71b282d467e31b1c60b3b0fb7dd9209347ab91c11afbd900c1c82951736382288cd5aebe49e9a5928434d36fac273ff0f621ecba47d4632beb8f438f80a47b646174616a243e9d3caeda907305289f1fcf49c6",
                "5501000000000000a0c701ac87971a9a5b29f1512f413b27",
                "5700003400000004ab7e8957f2464ae3189310cbe355926ec97aaf0a97e463d9b7cbbdb849583ab7e725e34d60f5edc00fcbd434c37802a33b14a18a6cf1ee2a4f60d3b28fada1ac9379987e6461746145d591a4780af9aec7945dbda0f16621",
            ],
        ),
        (
            Scheme::Lazy,
            [
                "54000000000000000a6c2ef0fed0a64d360f3b91a97dbe80",
                "5201003400000004f3084cde763367a7848c0e83aafc6cb5570bba7db262ff626079c809890314029018b8fe4d30fd3472addd9d35edfafd003585738514b7ca8634fd411a0ed5eb66e9a1cc64617461",
                "55010000000000007a6d4789403ea3925b63004b66165b67",
                "5200003400000004498a0c9ece7d2788d9cbe4850af9864f80c2a6de94c8c777642b4e573ede4fae68f05edffa2ae4d9077654ef45a3e999971bed8773f6352867f15ede3c55d435ddb0dd1b64617461",
            ],
        ),
    ];
    let header: Vec<u8> = (0..48).chain(*b"keys").collect();
    for (scheme, golden) in golden {
        let counters = Arc::new(CryptoCounters::new());
        let mut wire = Vec::new();
        let mut target = Channel::target(keys(scheme), ChannelLimits::default(), counters.clone(), &mut wire);
        let mut initiator = Channel::initiator(keys(scheme), ChannelLimits::default(), counters);
        initiator.handle_input(&wire[0]).unwrap();
        let send = |channel: &mut Channel, kind: FrameKind| {
            let mut frame = Vec::new();
            channel.encode(kind, &header, Buffer::copy_from(b"data"), &mut frame).unwrap();
            hex(&frame)
        };
        for kind in [FrameKind::Private, FrameKind::Protected, FrameKind::Sealed] {
            send(&mut initiator, kind);
        }
        let (mut rekey, mut close) = (Vec::new(), Vec::new());
        initiator.rekey(&mut rekey);
        let blocks = send(&mut initiator, FrameKind::Sealed);
        initiator.close(&mut close);
        let answer = send(&mut target, FrameKind::Sealed);
        assert_eq!([hex(&rekey), blocks, hex(&close), answer], golden, "{scheme}");
    }
}

/// S2-1 in every suite: the confirmation, and the first frame of the initiator with sealed block data. Computed by scripts/golden-suites.py.
#[test]
fn every_suite_is_as_specified() {
    let golden = [
        (
            Suite::Aes256Gcm,
            [
                "5300001000000000a19f622174c78289e76b27919848aac75f562a1283374550b4f4189c8f76d4d6",
                "56000034000000041d90a0770a38f9039635b685ed3f9d02e360e018629fcd9959ab9b45ceb56b01aab30244e326a7276a353cdefd0053e81dd9fb3d064083f800dc071102aecf56f81433bbfd415aa6",
            ],
        ),
        (
            Suite::Aes128Gcm,
            [
                "53000010000000004f07678bf4b9754f987b718760ef849557ec3dea65bf8bbccd6de6788c744e5d",
                "5600003400000004d451d795f7768058ea779df6941b0c7c661486368347e9f0cbedbb270d3ce74e9a762c0a030d0e2162e115f968ee173f7ba0f6137c1b56fa828d72bdd66fd32b073210c98ab42b32",
            ],
        ),
        (
            Suite::ChaCha20Poly1305,
            [
                "5300001000000000a7e8c39225a65732a97e1c8abc4ef5ba4b98702df15bd5c9cedfc53a223ea2f1",
                "5600003400000004cad335630d0bd4f88c29b2fa969cece150bbc57b6100e9a3085a026b411363d0e0426d288f22f139a96bbb2dbd80eaa1c5633435381a625047aa34e90cd98435ae956ce3a07f1e8b",
            ],
        ),
        (
            Suite::Aes192CbcHmacMd5,
            [
                "5300001000000000d06a1884ebb0665a55a69366548c90af7567ac16fd41a69f9a8c636839615b84",
                "5600003400000004e3bdeb42120e96db167a3527ccc37fcdaa8d2ba2707763561755d596c32a9e084b29ccd215b6cdb3b22ae8502dad3dda0352b19d1550694e8de524baa477d40aba0e278787610c06",
            ],
        ),
    ];
    for (suite, [confirm, blocks]) in golden {
        let keys = || keys(Scheme::EncryptAll).with_suite(suite);
        let counters = Arc::new(CryptoCounters::new());
        let mut wire = Vec::new();
        let mut target = Channel::target(keys(), ChannelLimits::default(), counters.clone(), &mut wire);
        assert_eq!(hex(&wire), confirm, "{suite}");
        let mut initiator = Channel::initiator(keys(), ChannelLimits::default(), counters.clone());
        initiator.handle_input(&wire[0]).unwrap();
        let header: Vec<u8> = (0..48).chain(*b"keys").collect();
        let mut frame = Vec::new();
        initiator.encode(FrameKind::Sealed, &header, Buffer::copy_from(b"data"), &mut frame).unwrap();
        assert_eq!(hex(&frame), blocks, "{suite}");
        target.handle_input(&frame[0]).unwrap();
        assert_eq!(&target.poll_frame().unwrap().data[..], b"data");
        // An end with another suite understands nothing of it.
        for other in Suite::ALL.into_iter().filter(|other| *other != suite) {
            let keys = ChannelKeys::new(std::array::from_fn(|at| at as u8), Scheme::EncryptAll).with_suite(other);
            let mut stranger = Channel::target(keys, ChannelLimits::default(), counters.clone(), &mut Vec::new());
            stranger.handle_input(&frame[0]).unwrap_err();
        }
    }
}
