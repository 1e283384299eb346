//! Compares windows, fast registrations, invalidations and re-registrations with a simple model.
//!
//! The steps are random. After every step each STag admits exactly the QPs that the model admits.

use proptest::prelude::*;
use proptest::sample::Index;
use uwarp_ddp::STag;

use super::super::{FastRegister, Purpose, WindowBind, WindowKind};
use super::*;

const PD: u32 = 1;
const LEN: usize = 64;

#[derive(Clone, Debug)]
enum Step {
    Bind { slot: Index, region: Index, qp: u32 },
    Register { slot: Index, qp: u32 },
    InvalidateLocally { slot: Index, qp: u32 },
    InvalidateRemotely { slot: Index, qp: u32 },
    InvalidateRegion { region: Index, qp: u32 },
    Free { slot: Index },
    Remove { region: Index },
    Revoke { region: Index },
    RegisterAnew { region: Index },
    EndOfStream { slot: Index, qp: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    let qp = || 1..3_u32;
    prop_oneof![
        6 => (index(), index(), qp()).prop_map(|(slot, region, qp)| Step::Bind { slot, region, qp }),
        3 => (index(), qp()).prop_map(|(slot, qp)| Step::Register { slot, qp }),
        3 => (index(), qp()).prop_map(|(slot, qp)| Step::InvalidateLocally { slot, qp }),
        2 => (index(), qp()).prop_map(|(slot, qp)| Step::InvalidateRemotely { slot, qp }),
        1 => (index(), qp()).prop_map(|(region, qp)| Step::InvalidateRegion { region, qp }),
        1 => index().prop_map(|slot| Step::Free { slot }),
        1 => index().prop_map(|region| Step::Remove { region }),
        1 => index().prop_map(|region| Step::Revoke { region }),
        2 => index().prop_map(|region| Step::RegisterAnew { region }),
        1 => (index(), qp()).prop_map(|(slot, qp)| Step::EndOfStream { slot, qp }),
    ]
}

/// A region in the model.
struct Plain {
    region: Arc<Region>,
    qp: Option<u32>,
    lends: bool,
    valid: bool,
    removed: bool,
}

/// A window or a fast region in the model.
struct PlainSlot {
    stag: u32,
    kind: Option<WindowKind>,
    /// Region it is bound to (for a window), and the only QP that may use it; `None` if not valid.
    reaches: Option<(Option<usize>, Option<u32>)>,
    /// QP whose end of stream invalidates it.
    qp: Option<u32>,
    freed: bool,
}

struct World {
    table: RegionTable,
    memory: Arc<Buffer>,
    regions: Vec<Plain>,
    slots: Vec<PlainSlot>,
}

fn may(only: Option<u32>, qp: u32) -> bool {
    only.is_none_or(|only| only == qp)
}

impl World {
    fn new() -> Self {
        let (table, memory) = (table(), buffer(LEN));
        let region = |qp, lends| {
            let access = if lends {
                remote() | Access::WINDOW_BIND
            } else {
                remote()
            };
            let spec = RegionSpec {
                qp,
                access,
                ..spec(&memory)
            };
            let region = table.insert(spec).unwrap();
            Plain {
                region,
                qp,
                lends,
                valid: true,
                removed: false,
            }
        };
        let regions = vec![
            region(None, true),
            region(Some(1), true),
            region(Some(2), false),
        ];
        let kinds = [WindowKind::Type1, WindowKind::Type2A, WindowKind::Type2B];
        let slots = kinds.map(Some).into_iter().chain([None, None]).map(|kind| {
            let purpose = match kind {
                Some(kind) => Purpose::Window(kind),
                None => Purpose::Fast(Arc::clone(&memory)),
            };
            let stag = table.reserve(PD, purpose).unwrap().0;
            PlainSlot {
                stag,
                kind,
                reaches: None,
                qp: None,
                freed: false,
            }
        });
        let slots = slots.collect();
        World {
            table,
            memory,
            regions,
            slots,
        }
    }

    /// Returns true if the slot admits any QP.
    fn is_live(&self, slot: &PlainSlot) -> bool {
        slot.reaches
            .is_some_and(|(under, _)| under.is_none_or(|under| self.regions[under].valid))
    }

    fn windows(&self, region: usize) -> bool {
        let bound = |slot: &PlainSlot| slot.reaches.is_some_and(|(under, _)| under == Some(region));
        self.slots.iter().any(bound)
    }

    fn bind(&mut self, slot: usize, region: usize, qp: u32) {
        let (window, under) = (&self.slots[slot], &self.regions[region]);
        let stag = crate::mem::inc_rkey(window.stag);
        let type_1 = window.kind == Some(WindowKind::Type1);
        let bind = WindowBind {
            lkey: under.region.stag().0,
            addr: 0,
            len: LEN as u64,
            access: Access::REMOTE_WRITE,
            zero_based: true,
        };
        let free = type_1 || !self.is_live(window);
        let good = window.kind.is_some() && !window.freed && free;
        let expected = good && under.valid && under.lends && may(under.qp, qp);
        let got = self.table.bind(stag, &bind, type_1, &asker(PD, qp));
        assert_eq!(
            got.is_ok(),
            expected,
            "bind {slot} to {region} by {qp}: {got:?}"
        );
        if expected {
            let own = (!type_1).then_some(qp);
            let reaches = Some((Some(region), own));
            self.slots[slot] = PlainSlot {
                stag,
                reaches,
                qp: own,
                ..self.slots[slot]
            };
        }
    }

    fn register(&mut self, slot: usize, qp: u32) {
        let fast = &self.slots[slot];
        let stag = crate::mem::inc_rkey(fast.stag);
        let register = FastRegister {
            stag,
            offset: 0,
            len: LEN as u64,
            iova: 0,
            access: remote(),
            for_pd: false,
        };
        let expected = fast.kind.is_none() && !fast.freed && fast.reaches.is_none();
        let got = self.table.register_fast(&register, &asker(PD, qp));
        assert_eq!(got.is_ok(), expected, "register {slot} by {qp}: {got:?}");
        if expected {
            let reaches = Some((None, Some(qp)));
            self.slots[slot] = PlainSlot {
                stag,
                reaches,
                qp: Some(qp),
                ..self.slots[slot]
            };
        }
    }

    fn invalidate_slot(&mut self, slot: usize, qp: u32, remotely: bool) {
        let it = &self.slots[slot];
        let own = it.reaches.and_then(|(_, own)| own);
        let expected = self.is_live(it) && own == Some(qp);
        let ok = if remotely {
            let checked = self.table.check_invalidate(STag(it.stag), PD, qp);
            if checked.is_ok() {
                assert_eq!(self.table.invalidate(STag(it.stag)), Some(0));
            }
            checked.is_ok()
        } else {
            self.table
                .invalidate_locally(it.stag, &asker(PD, qp))
                .is_ok()
        };
        assert_eq!(
            ok, expected,
            "invalidate {slot} by {qp}, remotely: {remotely}"
        );
        if ok {
            self.slots[slot].reaches = None;
        }
    }

    fn take(&mut self, step: &Step) {
        let (slots, regions) = (self.slots.len(), self.regions.len());
        match step {
            Step::Bind { slot, region, qp } => {
                self.bind(slot.index(slots), region.index(regions), *qp);
            }
            Step::Register { slot, qp } => self.register(slot.index(slots), *qp),
            Step::InvalidateLocally { slot, qp } => {
                self.invalidate_slot(slot.index(slots), *qp, false);
            }
            Step::InvalidateRemotely { slot, qp } => {
                self.invalidate_slot(slot.index(slots), *qp, true);
            }
            Step::InvalidateRegion { region, qp } => {
                let at = region.index(regions);
                let bound = self.windows(at);
                let it = &mut self.regions[at];
                let expected = it.valid && may(it.qp, *qp) && !bound;
                let got = self
                    .table
                    .invalidate_locally(it.region.stag().0, &asker(PD, *qp));
                assert_eq!(got.is_ok(), expected, "{got:?}");
                it.valid &= !expected;
            }
            Step::Free { slot } => {
                let it = &mut self.slots[slot.index(slots)];
                if !it.freed {
                    self.table.free(it.stag >> 8);
                    (it.freed, it.reaches) = (true, None);
                }
            }
            Step::Remove { region } => {
                let at = region.index(regions);
                let expected = !self.regions[at].removed && !self.windows(at);
                let it = &mut self.regions[at];
                let got = self.table.remove(it.region.stag());
                assert_eq!(got.is_ok(), expected, "{got:?}");
                if expected {
                    (it.removed, it.valid) = (true, false);
                }
            }
            Step::Revoke { region } => {
                let it = &mut self.regions[region.index(regions)];
                self.table.revoke(it.region.stag());
                (it.removed, it.valid) = (true, false);
            }
            Step::RegisterAnew { region } => {
                let at = region.index(regions);
                let bound = self.windows(at);
                let it = &mut self.regions[at];
                if it.removed {
                    return;
                }
                let access = it.region.access();
                let spec = RegionSpec {
                    qp: it.qp,
                    access,
                    ..spec(&self.memory)
                };
                match self.table.replace(&it.region, spec) {
                    Ok(new) => {
                        assert!(!bound);
                        (it.region, it.valid) = (new, true);
                    }
                    Err(error) => assert!(bound, "{error}"),
                }
            }
            Step::EndOfStream { slot, qp } => {
                let it = &mut self.slots[slot.index(slots)];
                self.table.end_for(it.stag >> 8, *qp);
                if it.qp == Some(*qp) && !it.freed {
                    (it.qp, it.reaches) = (None, None);
                }
            }
        }
    }

    /// Checks every STag with every QP.
    fn check(&self) {
        let enters = |stag: u32, qp| {
            let target = self
                .table
                .check(STag(stag), 0, 8, Need::RemoteWrite, &asker(PD, qp));
            target.is_ok_and(|target| target.place(0, &[1; 8]).is_ok())
        };
        for qp in 1..4 {
            for (at, it) in self.regions.iter().enumerate() {
                let expected = it.valid && may(it.qp, qp);
                assert_eq!(
                    enters(it.region.stag().0, qp),
                    expected,
                    "region {at} by {qp}"
                );
            }
            for (at, it) in self.slots.iter().enumerate() {
                let own = it.reaches.and_then(|(_, own)| own);
                let expected = self.is_live(it) && may(own, qp);
                assert_eq!(enters(it.stag, qp), expected, "slot {at} by {qp}");
            }
        }
        let regions = self.regions.iter().filter(|it| !it.removed).count();
        let slots = self.slots.iter().filter(|it| !it.freed).count();
        assert_eq!(self.table.live(), regions + slots);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        // Each step checks every STag with every QP, so Miri takes a minute for one case.
        cases: if cfg!(miri) { 1 } else { rounds(300) },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn stags_let_in_whom_the_model_lets_in(steps in proptest::collection::vec(step(), 1..if cfg!(miri) { 5 } else { 80 })) {
        let mut world = World::new();
        world.check();
        for step in &steps {
            world.take(step);
            world.check();
        }
    }
}
