//! Every RDMA operation between two controllers of one agent.

use serde_json::{Value, json};

use crate::controller::{Connected, Controller, agent, connect};

fn region(controller: &mut Controller, len: u64, access: &str) -> Value {
    controller.ok("reg", json!({"len": len, "access": access}))
}

fn peek(controller: &mut Controller, region: &Value, len: u64) -> String {
    let answer = controller.ok("peek", json!({"mr": region["mr"], "len": len}));
    answer["data"].as_str().unwrap().to_owned()
}

#[test]
fn a_send_of_several_elements_arrives_whole() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let Connected { active, passive } = connect(&mut a, &mut b, &json!({}));
    let (source, sink) = (region(&mut a, 100_000, "lw"), region(&mut b, 100_000, "lw"));
    a.ok("fill", json!({"mr": source["mr"], "seed": 5}));
    b.ok(
        "recv",
        json!({"conn": passive, "wr_id": 9, "sge": "0:0+60000,0:60000+40000"}),
    );
    let sge = "0:0+1,0:1+99999";
    let answer = a.ok(
        "post",
        json!({"conn": active, "op": "send", "wr_id": 7, "sge": sge, "se": true}),
    );
    assert_eq!(answer["posted"], 1);
    assert_eq!(a.success(&active, 7)["op"], "send");
    let received = b.success(&passive, 9);
    assert_eq!(
        (&received["op"], &received["len"]),
        (&json!("recv"), &json!(100_000))
    );
    let check = b.ok("check", json!({"mr": sink["mr"], "seed": 5}));
    assert_eq!(check["match"], true, "{check}");
    let check = b.ok(
        "check",
        json!({"mr": 0, "seed": 5, "off": 3, "at": 3, "len": 10}),
    );
    assert_eq!(check["match"], true, "{check}");
    let check = b.ok("check", json!({"mr": 0, "zero": true}));
    assert_eq!(
        (&check["match"], &check["off"], &check["want"]),
        (&json!(false), &json!(0), &json!(0))
    );
    let hashes = [
        a.ok("hash", json!({"mr": 0})),
        b.ok("hash", json!({"mr": 0})),
    ];
    assert_eq!(hashes[0]["fnv1a"], hashes[1]["fnv1a"]);
}

#[test]
fn writes_and_reads_go_where_the_peer_said() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let Connected { active, .. } = connect(&mut a, &mut b, &json!({"inline": 16}));
    region(&mut a, 64, "lw");
    let lent = b.ok(
        "reg",
        json!({"len": 64, "access": "lw,rw,rr", "skew": 3, "zero_based": true}),
    );
    assert_eq!(lent["addr"], 0);
    a.ok("poke", json!({"mr": 0, "data": "0102030405060708"}));
    // Posts four Writes of two bytes each. Local and remote offsets increase by two.
    let write = json!({"conn": active, "op": "write", "wr_id": 10, "sge": "0:0+2", "count": 4, "stride": 2,
        "raddr": 8, "rstride": 2, "rkey": lent["rkey"], "inline": true, "signal": "last"});
    assert_eq!(a.ok("post", write)["posted"], 4);
    assert_eq!(a.success(&active, 13)["op"], "write");
    let read = json!({"conn": active, "op": "read", "wr_id": 20, "sge": "0:32+16", "raddr": "0x4", "rkey": lent["rkey"]});
    a.ok("post", read);
    let done = a.success(&active, 20);
    assert_eq!((&done["op"], &done["len"]), (&json!("read"), &json!(16)));
    let answer = a.ok("peek", json!({"mr": 0, "off": 32, "len": 16}));
    assert_eq!(answer["data"], "00000000010203040506070800000000");
    assert!(
        a.unread().iter().all(|line| line.get("wc").is_none()),
        "{:?}",
        a.unread()
    );
}

#[test]
fn atomics_bring_back_the_word_and_obey_their_masks() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let Connected { active, .. } = connect(&mut a, &mut b, &json!({}));
    region(&mut a, 8, "lw");
    let lent = region(&mut b, 16, "lw,ra");
    let word = |value: u64| {
        let bytes = value.to_ne_bytes().map(|byte| format!("{byte:02x}"));
        bytes.concat()
    };
    b.ok("poke", json!({"mr": 0, "data": word(0xFFFF_FFFF)}));
    let mut atomic = |wr_id: u64, members: Value| {
        let mut post = json!({"conn": active, "wr_id": wr_id, "sge": "0:0+8", "raddr": lent["addr"], "rkey": lent["rkey"]});
        let more = members.as_object().unwrap().clone();
        post.as_object_mut().unwrap().extend(more);
        a.ok("post", post);
        let done = a.success(&active, wr_id);
        (done["op"].clone(), peek(&mut a, &json!({"mr": 0}), 8))
    };
    let told = atomic(1, json!({"op": "fadd", "compare": 1}));
    assert_eq!(told, (json!("fadd"), word(0xFFFF_FFFF)));
    // The mask ends a field at bit 32, so the carry out of this bit is dropped.
    let told = atomic(
        2,
        json!({"op": "fadd", "compare": 1u64 << 32, "mask": 1u64 << 32}),
    );
    assert_eq!(told, (json!("fadd"), word(1 << 32)));
    let told = atomic(
        3,
        json!({"op": "cas", "compare": 0, "swap": "0xffffffffffffffff", "swap_mask": 0xF0}),
    );
    assert_eq!(told, (json!("cas"), word(0)));
    let told = atomic(
        4,
        json!({"op": "cas", "compare": 1, "compare_mask": 1, "swap": 0}),
    );
    assert_eq!(told, (json!("cas"), word(0xF0)));
    assert_eq!(peek(&mut b, &json!({"mr": 0}), 8), word(0xF0));
}

#[test]
fn immediate_data_comes_alone_or_behind_a_write() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let Connected { active, passive } = connect(&mut a, &mut b, &json!({}));
    region(&mut a, 4, "lw");
    let lent = region(&mut b, 4, "lw,rw");
    b.ok("recv", json!({"conn": passive, "wr_id": 1, "count": 2}));
    let write = json!({"conn": active, "op": "write_imm", "wr_id": 1, "sge": "0:0+4", "raddr": lent["addr"],
        "rkey": lent["rkey"], "imm": "0123456789abcdef"});
    a.ok("post", write);
    a.ok(
        "post",
        json!({"conn": active, "op": "imm", "wr_id": 2, "imm": 258}),
    );
    assert_eq!(
        (&a.success(&active, 1)["op"], &a.success(&active, 2)["op"]),
        (&json!("write"), &json!("send"))
    );
    for (wr_id, imm) in [(1, "0123456789abcdef"), (2, "0000010200000000")] {
        let received = b.success(&passive, wr_id);
        assert_eq!(
            (&received["op"], &received["imm"]),
            (&json!("recv_write_imm"), &json!(imm))
        );
        assert_eq!(received["flags"], 2);
    }
    let refused = a.refused("post", json!({"conn": active, "op": "send_imm", "imm": 1}));
    assert_eq!(
        (&refused["errno"], &refused["posted"]),
        (&json!(95), &json!(0))
    );
}

#[test]
fn a_region_of_one_connection_is_invalidated_by_its_peer() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let Connected { active, passive } = connect(&mut a, &mut b, &json!({"pd": 3}));
    let lent = b.ok("reg", json!({"len": 8, "access": "lw,rw", "conn": passive}));
    b.ok("recv", json!({"conn": passive, "wr_id": 1}));
    a.ok(
        "post",
        json!({"conn": active, "op": "send_inv", "inv": lent["rkey"]}),
    );
    let received = b.success(&passive, 1);
    assert_eq!(
        (&received["inv"], &received["flags"]),
        (&lent["rkey"], &json!(8))
    );
    // A region in another protection domain cannot be restricted to this QP.
    let refused = b.refused("reg", json!({"len": 8, "conn": passive, "pd": 0}));
    assert_eq!(refused["error"], "ibv_reg_mr");

    let write = json!({"conn": active, "op": "write", "wr_id": 5, "sge": "0:0+8", "raddr": lent["addr"], "rkey": lent["rkey"]});
    a.ok("reg", json!({"len": 8, "pd": 3}));
    a.ok("post", write);
    let end = b.event("disconnected", &passive);
    assert!(end["cause"].as_str().unwrap().contains("STag"), "{end}");
    let end = a.event("disconnected", &active);
    assert!(
        end["cause"].as_str().unwrap().contains("invalid STag"),
        "{end}"
    );
    let fatal = a.wait("an event of the device", |line| line["type"] == 1);
    assert_eq!(fatal["conn"], active);
}

#[test]
fn a_window_is_bound_used_made_invalid_and_bound_again() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let Connected { active, passive } = connect(&mut a, &mut b, &json!({}));
    region(&mut a, 8, "lw");
    b.ok("reg", json!({"len": 64, "access": "lw,mw"}));
    let bind = json!({"conn": passive, "mr": 0, "off": 16, "len": 8, "access": "rw", "zero_based": true, "wr_id": 1});
    let window = b.ok("bind", bind.clone());
    assert_eq!(
        (&window["addr"], &b.success(&passive, 1)["op"]),
        (&json!(0), &json!("bind_mw"))
    );
    a.ok("fill", json!({"mr": 0, "seed": 1}));
    a.ok("post", json!({"conn": active, "op": "write", "wr_id": 2, "sge": "0:0+8", "raddr": 0, "rkey": window["rkey"]}));
    // When this Send arrives, the Write before it has been placed.
    b.ok("recv", json!({"conn": passive, "wr_id": 2}));
    a.ok("post", json!({"conn": active, "op": "send", "wr_id": 3}));
    b.success(&passive, 2);
    let check = b.ok("check", json!({"mr": 0, "off": 16, "len": 8, "seed": 1}));
    assert_eq!(check["match"], true);

    b.ok(
        "inval",
        json!({"conn": passive, "rkey": window["rkey"], "wr_id": 3}),
    );
    assert_eq!(b.success(&passive, 3)["op"], "local_inv");
    let mut again = bind;
    (again["mw"], again["wr_id"]) = (window["mw"].clone(), json!(4));
    let again = b.ok("bind", again);
    b.success(&passive, 4);
    assert_ne!(again["rkey"], window["rkey"]);
    let busy = b.refused("dereg", json!({"mr": 0}));
    assert_eq!(
        (&busy["error"], &busy["errno"]),
        (&json!("ibv_dereg_mr"), &json!(16))
    );
    b.ok("unbind", json!({"mw": window["mw"]}));
    b.ok("dereg", json!({"mr": 0}));
}

#[test]
fn a_read_makes_its_sink_invalid_when_it_is_told_to() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let Connected { active, .. } = connect(&mut a, &mut b, &json!({}));
    let lent = region(&mut b, 8, "rr");
    let sink = a.ok("reg", json!({"len": 8, "access": "lw", "conn": active}));
    let post = json!({"conn": active, "op": "read_inv", "wr_id": 1, "sge": "0:0+8",
        "raddr": lent["addr"], "rkey": lent["rkey"]});
    a.ok("post", post.clone());
    let done = a.success(&active, 1);
    assert_eq!((&done["inv"], &done["flags"]), (&sink["rkey"], &json!(8)));
    let refused = a.refused("post", post);
    assert_eq!(refused["error"], "ibv_post_send");
    // The region itself is still registered, and can be read locally.
    a.ok("peek", json!({"mr": 0}));
}

#[test]
fn a_batch_says_how_much_of_it_was_taken() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let Connected { active, passive } =
        connect(&mut a, &mut b, &json!({"recv_wr": 3, "notify": "none"}));
    let refused = b.refused("recv", json!({"conn": passive, "count": 5}));
    assert_eq!(
        (&refused["error"], &refused["errno"], &refused["posted"]),
        (&json!("ibv_post_recv"), &json!(12), &json!(3))
    );
    a.ok(
        "post",
        json!({"conn": active, "op": "send", "count": 3, "signal": "none"}),
    );
    // A CQ that is not armed reports no completions. `poll` reports them.
    let mut count = 0;
    while count < 3 {
        count += b.ok("poll", json!({"conn": passive}))["count"]
            .as_u64()
            .unwrap();
    }
    for wr_id in 0..3 {
        assert_eq!(b.success(&passive, wr_id)["len"], 0);
    }
    assert_eq!(a.ok("poll", json!({"conn": active}))["count"], 0);
    b.refused("recv", json!({"conn": passive, "count": 4097}));
    b.refused("recv", json!({"conn": passive, "sge": "0:0+1"}));
    b.ok("reg", json!({"len": 8}));
    for sge in [
        "0",
        "0:1",
        "0:1+",
        "a:0+1",
        "0:0+1,",
        "0:-1+1",
        "0:0+4294967296",
    ] {
        let refused = b.refused("recv", json!({"conn": passive, "sge": sge}));
        assert!(
            refused["error"].as_str().unwrap().starts_with("sge: "),
            "{refused}"
        );
    }
}
