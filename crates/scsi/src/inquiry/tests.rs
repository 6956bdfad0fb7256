//! Proves the pages against the standards' tables, and that a short or foreign page is refused.

use super::*;

const VOLUME: VolumeId = VolumeId([0xab, 0xcd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);

#[test]
fn golden_standard() {
    let data = standard(false);
    assert_eq!(data[..8], [0, 0, 6, 0x12, 69, 0x18, 0, 2]);
    assert_eq!(&data[8..36], b"STRNGRM PLAIN VOLUME    0001");
    let parsed = StandardInquiry::parse(&data).unwrap();
    assert!(parsed.is_block_device());
    assert_eq!((parsed.vendor.as_str(), parsed.product.as_str()), ("STRNGRM", "PLAIN VOLUME"));
    assert!(!StandardInquiry::parse(&standard_absent()).unwrap().is_block_device());
    assert_eq!(StandardInquiry::parse(&data[..35]), None);
}

#[test]
fn text_from_a_peer_is_made_harmless() {
    let mut data = standard(true);
    data[8..12].copy_from_slice(b"\x1b[2J");
    assert_eq!(StandardInquiry::parse(&data).unwrap().vendor, "?[2JGRM");
}

#[test]
fn golden_pages() {
    assert_eq!(supported_pages(&[0, 0x80, 0x83]), [0, 0, 0, 3, 0, 0x80, 0x83]);
    assert_eq!(parse_vpd_pages(&supported_pages(&[0, 0xc0])), Some(vec![0, 0xc0]));
    assert_eq!(parse_serial(&serial(VOLUME)).unwrap(), "abcd0102030405060708090a0b0c0d0e");
    assert_eq!(provisioning(BlockSize::DEFAULT), [0, 0xb2, 0, 4, 8, 0xe4, 2, 0]);
    assert_eq!(characteristics(false)[..8], [0, 0xb1, 0, 60, 0, 1, 0, 0]);
    assert_eq!(characteristics(true)[7], 0x40);
    assert_eq!(characteristics(true).len(), 64);
    assert_eq!(extended()[..8], [0, 0x86, 0, 60, 0, 7, 1, 1]);
    assert_eq!(mode_policy(), [0, 0x87, 0, 4, 0x3f, 0xff, 0, 0]);
    let ports = ports("iqn.a:v", &[1, 0x20]);
    assert_eq!(ports[..20], [0, 0x88, 0, 72, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 24, 0x53, 0x98, 0, 20]);
    assert_eq!(&ports[20..40], b"iqn.a:v,t,0x0001\0\0\0\0");
    assert_eq!(ports[40..44], [0, 0, 0, 0x20]);
    assert_eq!(&ports[56..], b"iqn.a:v,t,0x0020\0\0\0\0");
    assert_eq!(management("https://x/"), [&[0, 0x85, 0, 16, 0x41, 0, 0, 12], &b"https://x/\0\0"[..]].concat());
}

#[test]
fn identification_is_well_formed() {
    let page = identification(VOLUME, "iqn.2026-11.org.strongroom:v", 7);
    let holds = |bytes: &[u8]| page.windows(bytes.len()).any(|window| window == bytes);
    assert!(holds(&[0x51, 0x94, 0, 4, 0, 0, 0, 7]) && holds(&[0x51, 0x95, 0, 4, 0, 0, 0, 1]), "port 7 of group 1");
    assert_eq!(page[..16], [0, 0x83, page[2], page[3], 1, 3, 0, 8, 0x3b, 0xcd, 1, 2, 3, 4, 5, 6]);
    let mut list = &page[4..];
    let mut kinds = Vec::new();
    while let [_, kind, _, len, ..] = *list {
        kinds.push(kind & 0x3f);
        list = &list[4 + usize::from(len)..];
    }
    assert!(list.is_empty());
    assert_eq!(kinds, [0x03, 0x01, 0x0a, 0x08, 0x18, 0x14, 0x15, 0x28]);
}

#[test]
fn a_long_target_name_is_cut_to_what_the_page_holds() {
    let page = identification(VOLUME, &"x".repeat(223 + 200), 1);
    assert_eq!(usize::from(u16::from_be_bytes([page[2], page[3]])), page.len() - 4);
}

#[test]
fn limits_parse_as_encoded() {
    let limits = BlockLimits {
        write_same_nonzero: true,
        compare_and_write_blocks: 1,
        granularity_blocks: 1,
        transfer_blocks_max: 2048,
        transfer_blocks_optimal: 256,
        unmap_blocks_max: u32::MAX,
        unmap_descriptors_max: 256,
        write_same_blocks_max: 1 << 40,
        atomic_blocks_max: 128,
    };
    assert_eq!(BlockLimits::parse(&limits.encode()), Some(limits));
    assert_eq!(BlockLimits::parse(&limits.encode()[..10]), None);
    assert_eq!(BlockLimits::parse(&serial(VOLUME)), None);
    // An SBC-2 page of 16 bytes.
    let mut short = limits.encode()[..16].to_vec();
    short[3] = 12;
    assert_eq!(BlockLimits::parse(&short).unwrap().unmap_blocks_max, 0);
}
