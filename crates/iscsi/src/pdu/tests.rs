//! Proves the layout of each header by golden bytes set against the figures of RFC 7143 §11, and that every header
//! decodes as encoded.

use proptest::prelude::*;

use super::*;
use crate::{LoginStatus, Residual, Serial};

/// Headers of zeros with the given bytes put in: (offset, bytes).
fn golden(parts: &[(usize, &[u8])]) -> Bhs {
    let mut bytes = [0; BHS_BYTES];
    for (at, part) in parts {
        bytes[*at..at + part.len()].copy_from_slice(part);
    }
    Bhs(bytes)
}

const LUN_1: &[u8] = &[0, 1, 0, 0, 0, 0, 0, 0];
const TAG: (usize, &[u8]) = (16, &[0, 0, 0, 0x2a]);

fn numbers() -> Sequence {
    Sequence { stat_sn: Serial(0x0a0b_0c0d), exp_cmd_sn: Serial(0x1a1b_1c1d), max_cmd_sn: Serial(0x2a2b_2c2d) }
}

const NUMBERS: (usize, &[u8]) = (24, &[0x0a, 0x0b, 0x0c, 0x0d, 0x1a, 0x1b, 0x1c, 0x1d, 0x2a, 0x2b, 0x2c, 0x2d]);
const NO_TAG: &[u8] = &[0xff; 4];

#[test]
fn requests_have_the_bytes_of_the_rfc() {
    let (cmd_sn, exp_stat_sn) = (Serial(0x0102_0304), Serial(0x0506_0708));
    let both: (usize, &[u8]) = (24, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let lun = Lun::single_level(1);

    let mut cdb = [0; 16];
    cdb[..10].copy_from_slice(&[0x2a, 0, 0, 0, 0, 9, 0, 0, 8, 0]);
    let command = ScsiCommand {
        immediate: true,
        is_final: true,
        read: false,
        write: true,
        attribute: Attribute::Simple,
        lun,
        initiator_task_tag: 0x2a,
        expected_data_transfer_bytes: 4096,
        cmd_sn,
        exp_stat_sn,
        cdb,
    };
    let bytes = golden(&[(0, &[0x41, 0xa1]), (8, LUN_1), TAG, (20, &[0, 0, 0x10, 0]), both, (32, &cdb)]);
    assert_eq!(command.encode().0, bytes.0);
    assert_eq!(Request::decode(&bytes), Ok(Request::ScsiCommand(command)));

    let data_out = DataOut {
        is_final: true,
        lun,
        initiator_task_tag: 0x2a,
        target_transfer_tag: 0x77,
        exp_stat_sn,
        data_sn: 3,
        buffer_offset: 0x2000,
    };
    let bytes = golden(&[
        (0, &[0x05, 0x80]),
        (8, LUN_1),
        TAG,
        (20, &[0, 0, 0, 0x77]),
        (28, &[5, 6, 7, 8]),
        (36, &[0, 0, 0, 3, 0, 0, 0x20, 0]),
    ]);
    assert_eq!(data_out.encode().0, bytes.0);
    assert_eq!(Request::decode(&bytes), Ok(Request::DataOut(data_out)));

    let management = TaskManagementRequest {
        immediate: true,
        function: TaskFunction::AbortTask as u8,
        lun,
        initiator_task_tag: 0x2a,
        referenced_task_tag: 0x29,
        cmd_sn,
        exp_stat_sn,
        ref_cmd_sn: Serial(9),
        exp_data_sn: 3,
    };
    let numbers: (usize, &[u8]) = (32, &[0, 0, 0, 9, 0, 0, 0, 3]);
    let bytes = golden(&[(0, &[0x42, 0x81]), (8, LUN_1), TAG, (20, &[0, 0, 0, 0x29]), both, numbers]);
    assert_eq!(management.encode().0, bytes.0);
    assert_eq!(Request::decode(&bytes), Ok(Request::TaskManagement(management)));

    let login = LoginRequest {
        tsih: 0x0607,
        initiator_task_tag: 0x2a,
        cid: 1,
        cmd_sn,
        exp_stat_sn,
        ..LoginRequest::one_step([0x80, 1, 2, 3, 4, 5])
    };
    let bytes = golden(&[(0, &[0x43, 0x87]), (8, &[0x80, 1, 2, 3, 4, 5, 6, 7]), TAG, (20, &[0, 1]), both]);
    assert_eq!(login.encode().0, bytes.0);
    assert_eq!(Request::decode(&bytes), Ok(Request::Login(login)));

    let text = TextRequest {
        immediate: false,
        is_final: true,
        continues: false,
        lun: Lun(0),
        initiator_task_tag: 0x2a,
        target_transfer_tag: TAG_NONE,
        cmd_sn,
        exp_stat_sn,
    };
    let bytes = golden(&[(0, &[0x04, 0x80]), TAG, (20, NO_TAG), both]);
    assert_eq!(text.encode().0, bytes.0);
    assert_eq!(Request::decode(&bytes), Ok(Request::Text(text)));

    let logout = LogoutRequest { immediate: true, reason: 1, initiator_task_tag: 0x2a, cid: 2, cmd_sn, exp_stat_sn };
    let bytes = golden(&[(0, &[0x46, 0x81]), TAG, (20, &[0, 2]), both]);
    assert_eq!(logout.encode().0, bytes.0);
    assert_eq!(Request::decode(&bytes), Ok(Request::Logout(logout)));

    let nop = NopOut {
        immediate: true,
        lun: Lun(0),
        initiator_task_tag: 0x2a,
        target_transfer_tag: TAG_NONE,
        cmd_sn,
        exp_stat_sn,
    };
    let bytes = golden(&[(0, &[0x40, 0x80]), TAG, (20, NO_TAG), both]);
    assert_eq!(nop.encode().0, bytes.0);
    assert_eq!(Request::decode(&bytes), Ok(Request::NopOut(nop)));

    let bytes = golden(&[(0, &[0x10, 0x81]), TAG, (20, NO_TAG), (40, &[0, 0, 0, 5, 0, 0, 0, 6])]);
    let snack = SnackRequest {
        kind: 1,
        lun: Lun(0),
        initiator_task_tag: 0x2a,
        target_transfer_tag: TAG_NONE,
        begin_run: 5,
        run_length: 6,
    };
    assert_eq!(Request::decode(&bytes), Ok(Request::Snack(snack)));
}

#[test]
fn answers_have_the_bytes_of_the_rfc() {
    let sequence = numbers();
    let check = |encoded: Bhs, bytes: Bhs, answer: Answer| {
        assert_eq!(encoded.0, bytes.0, "{answer:?}");
        assert_eq!(Answer::decode(&bytes), Ok(answer));
        assert_eq!(answer.sequence(), sequence);
    };

    let response = ScsiResponse {
        response: 0,
        status: 2,
        initiator_task_tag: 0x2a,
        sequence,
        exp_data_sn: 4,
        residual: Residual::Underflow(512),
    };
    let bytes = golden(&[(0, &[0x21, 0x82, 0, 2]), TAG, NUMBERS, (36, &[0, 0, 0, 4]), (44, &[0, 0, 2, 0])]);
    check(response.encode(), bytes, Answer::ScsiResponse(response));

    let data_in = DataIn {
        is_final: true,
        status: Some((0, Residual::Overflow(7))),
        lun: Lun(0),
        initiator_task_tag: 0x2a,
        sequence,
        data_sn: 1,
        buffer_offset: 0x1000,
    };
    let bytes =
        golden(&[(0, &[0x25, 0x85]), TAG, (20, NO_TAG), NUMBERS, (36, &[0, 0, 0, 1, 0, 0, 0x10, 0, 0, 0, 0, 7])]);
    check(data_in.encode(), bytes, Answer::DataIn(data_in));

    let r2t = R2t {
        lun: Lun::single_level(1),
        initiator_task_tag: 0x2a,
        target_transfer_tag: 0x77,
        sequence,
        r2t_sn: 2,
        buffer_offset: 0x1000,
        desired_data_transfer_bytes: 0x3000,
    };
    let bytes = golden(&[
        (0, &[0x31, 0x80]),
        (8, LUN_1),
        TAG,
        (20, &[0, 0, 0, 0x77]),
        NUMBERS,
        (36, &[0, 0, 0, 2, 0, 0, 0x10, 0, 0, 0, 0x30, 0]),
    ]);
    check(r2t.encode(), bytes, Answer::R2t(r2t));

    let result = TaskManagementResult::NotSupported;
    let management = TaskManagementResponse { result, additional: [0; 3], initiator_task_tag: 0x2a, sequence };
    check(management.encode(), golden(&[(0, &[0x22, 0x80, 5]), TAG, NUMBERS]), Answer::TaskManagement(management));

    let login = LoginResponse {
        transit: true,
        continues: false,
        current_stage: 0,
        next_stage: 1,
        isid: [0x80, 1, 2, 3, 4, 5],
        tsih: 0x0607,
        initiator_task_tag: 0x2a,
        sequence,
        status: LoginStatus::NOT_FOUND,
    };
    let bytes = golden(&[(0, &[0x23, 0x81]), (8, &[0x80, 1, 2, 3, 4, 5, 6, 7]), TAG, NUMBERS, (36, &[2, 3])]);
    check(login.encode(), bytes, Answer::Login(login));

    let text = TextResponse {
        is_final: false,
        continues: true,
        initiator_task_tag: 0x2a,
        target_transfer_tag: 0x77,
        sequence,
    };
    let bytes = golden(&[(0, &[0x24, 0x40]), TAG, (20, &[0, 0, 0, 0x77]), NUMBERS]);
    check(text.encode(), bytes, Answer::Text(text));

    let logout = LogoutResponse {
        result: LogoutResult::CidNotFound,
        initiator_task_tag: 0x2a,
        sequence,
        time2wait_s: 2,
        time2retain_s: 258,
    };
    let bytes = golden(&[(0, &[0x26, 0x80, 1]), TAG, NUMBERS, (40, &[0, 2, 1, 2])]);
    check(logout.encode(), bytes, Answer::Logout(logout));

    let nop = NopIn { lun: Lun(0), initiator_task_tag: TAG_NONE, target_transfer_tag: 0x77, sequence };
    let bytes = golden(&[(0, &[0x20, 0x80]), (16, NO_TAG), (20, &[0, 0, 0, 0x77]), NUMBERS]);
    check(nop.encode(), bytes, Answer::NopIn(nop));

    let message = AsyncMessage { event: AsyncEvent::LogoutRequested, sequence, parameters: [1, 2, 30] };
    let bytes = golden(&[(0, &[0x32, 0x80]), (16, NO_TAG), NUMBERS, (36, &[1, 0, 0, 1, 0, 2, 0, 30])]);
    check(message.encode(), bytes, Answer::AsyncMessage(message));

    let reject = Reject { reason: RejectReason::ProtocolError as u8, sequence };
    let bytes = golden(&[(0, &[0x3f, 0x80, 4]), (16, NO_TAG), NUMBERS]);
    check(reject.encode(), bytes, Answer::Reject(reject));
}

#[test]
fn values_without_meaning_are_refused() {
    let refused = [
        golden(&[(0, &[0x01, 0x07])]),       // a reserved attribute
        golden(&[(0, &[0x21, 0x86])]),       // overflow and underflow at once
        golden(&[(0, &[0x25, 0x87])]),       // the same in a Data-In
        golden(&[(0, &[0x22, 0x80, 9])]),    // a reserved task management response
        golden(&[(0, &[0x26, 0x80, 9])]),    // a reserved logout response
        golden(&[(0, &[0x32]), (36, &[9])]), // a reserved event
        golden(&[(0, &[0x1f])]),             // a reserved opcode
    ];
    for bhs in refused {
        assert!(Request::decode(&bhs).is_err() && Answer::decode(&bhs).is_err(), "{bhs:?}");
    }
}

#[test]
fn logical_unit_numbers_have_two_single_level_forms() {
    assert_eq!(Lun::single_level(0), Lun(0));
    assert_eq!(Lun::single_level(255), Lun(0x00ff_0000_0000_0000));
    assert_eq!(Lun::single_level(256), Lun(0x4100_0000_0000_0000));
    for index in [0, 1, 255, 256, 16383] {
        assert_eq!(Lun::single_level(index).index(), Some(index));
    }
    // Flat space form of a small index; a bus; a second level; the well-known REPORT LUNS.
    assert_eq!(Lun(0x4001_0000_0000_0000).index(), Some(1));
    for other in [0x0101_0000_0000_0000, 0x0001_0001_0000_0000, 0xc101_0000_0000_0000] {
        assert_eq!(Lun(other).index(), None);
    }
}

#[test]
fn a_frame_must_agree_with_its_header() {
    let pdu = Pdu::new(Bhs::new(Opcode::DataOut), Bytes::new(), Buffer::copy_from(&[1; 512]), true);
    let mut header = Vec::new();
    pdu.channel_header(&mut header);
    let header = Bytes::from(header);
    assert_eq!(Pdu::from_channel_frame(header.clone(), pdu.data.clone(), true), Ok(pdu.clone()));
    let shorter = pdu.data.slice(..511);
    assert!(matches!(Pdu::from_channel_frame(header.clone(), shorter, true), Err(PduError::FrameLength { .. })));
    let cut = header.slice(..47);
    assert!(matches!(Pdu::from_channel_frame(cut, pdu.data.clone(), true), Err(PduError::HeaderLength(47))));
    let mut counted = header.to_vec();
    counted[4] = 1;
    counted.extend_from_slice(&[0; 4]);
    assert!(matches!(
        Pdu::from_channel_frame(Bytes::from(counted), pdu.data.clone(), true),
        Err(PduError::FrameLength { field: "TotalAHSLength", .. })
    ));
    let ragged = Bytes::from([&header[..], &[0, 1, 2]].concat());
    assert!(matches!(Pdu::from_channel_frame(ragged, pdu.data, true), Err(PduError::Ahs(_))));
}

proptest! {
    #[test]
    fn any_header_decodes_or_is_refused_and_what_decodes_encodes_alike(bytes: [u8; 48]) {
        let bhs = Bhs(bytes);
        if let Ok(request) = Request::decode(&bhs) {
            let again = match request {
                Request::NopOut(header) => header.encode(),
                Request::ScsiCommand(header) => header.encode(),
                Request::TaskManagement(header) => header.encode(),
                Request::Login(header) => header.encode(),
                Request::Text(header) => header.encode(),
                Request::DataOut(header) => header.encode(),
                Request::Logout(header) => header.encode(),
                Request::Snack(_) => bhs,
            };
            // A login is immediate regardless of the bit.
            prop_assert_eq!(Request::decode(&again), Ok(request));
        }
        if let Ok(answer) = Answer::decode(&bhs) {
            let again = match answer {
                Answer::NopIn(header) => header.encode(),
                Answer::ScsiResponse(header) => header.encode(),
                Answer::TaskManagement(header) => header.encode(),
                Answer::Login(header) => header.encode(),
                Answer::Text(header) => header.encode(),
                Answer::DataIn(header) => header.encode(),
                Answer::Logout(header) => header.encode(),
                Answer::R2t(header) => header.encode(),
                Answer::AsyncMessage(header) => header.encode(),
                Answer::Reject(header) => header.encode(),
            };
            // Without the flag the residual count is reserved, and is not written back.
            prop_assert_eq!(Answer::decode(&again), Ok(answer));
        }
    }
}
