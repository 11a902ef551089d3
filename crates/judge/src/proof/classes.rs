//! Classes of first packets with the same fate.

use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, available_parallelism};

use super::fate::Fate;
use super::space::Space;
use crate::trace::region::{Field, Ranges, Region, Seen, address};
use crate::trace::walk::Walker;
use crate::trace::{Carried, Entry, Flow, Stop, World};
use kpx_node::evidence::Gap;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;

/// Packets that share their fate on each side.
#[derive(Clone, Debug)]
pub struct Class<const N: usize> {
    /// The place where they enter.
    pub entry: Entry,
    /// Their family.
    pub family: Family,
    /// Their fields. The source of packets of the host is the one that the node chooses.
    pub region: Region,
    /// Their fate on each side.
    pub fates: [Fate; N],
}

impl<const N: usize> Class<N> {
    /// Returns one of the packets.
    pub fn witness(&self) -> Flow {
        witness(self.entry, self.family, &self.region)
    }
}

/// Returns the fate of `flow`, and records the questions about it in `seen`.
pub(super) fn fate(walker: &Walker<'_, '_, '_>, flow: &Flow, seen: &Rc<Seen>) -> Result<Fate, Gap> {
    // Without routes, each destination would be a class of its own.
    walker.world.node.routes()?;
    let in_parts = || Gap::NotApplicable("rules that are read in parts".to_owned());
    let outcomes = walker.record(flow, seen).map_err(|stop| match stop {
        Stop::Broken(gap) => gap,
        Stop::Need(_) => in_parts(),
    })?;
    let outcomes = walker
        .world
        .relayed(flow, outcomes)
        .map_err(|_| in_parts())?;
    Ok(Fate::of(&outcomes))
}

/// A region with more ranges of destinations than this is divided, because the rest of it is copied for each class.
pub(super) const MOST_RANGES: usize = 16;

/// Divides the packets of `space` into classes with the same fate in each of `worlds`, which are known for its family.
///
/// Returns for each part of the space, in order, the collection that `gather` made and to which `visit` added each
/// class of the part.
///
/// # Errors
///
/// Missing data about a world; or there are more than `most` classes.
pub(crate) fn classes<const N: usize, T: Send>(
    worlds: [&World<'_, '_>; N],
    space: &Space,
    most: usize,
    gather: impl Fn() -> T + Sync,
    visit: impl Fn(&mut T, Class<N>) + Sync,
) -> Result<Vec<T>, Gap> {
    let (next, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let walkers = worlds.map(|world| Walker::recording(world, space.family));
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((entry, region)) = space.parts.get(at) else {
                return Ok(done);
            };
            let mut found = gather();
            divide(&walkers, *entry, region.clone(), |class| {
                if count.fetch_add(1, Ordering::Relaxed) >= most {
                    let family = space.family;
                    return Err(Gap::NotApplicable(format!(
                        "the rules divide packets of {family} into more than {most} classes"
                    )));
                }
                visit(&mut found, class);
                Ok(())
            })?;
            done.push((at, found));
        }
    };
    let threads = available_parallelism().map_or(1, usize::from);
    let done: Result<Vec<_>, Gap> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(space.parts.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let mine = work();
        let others = others.into_iter().map(thread::ScopedJoinHandle::join);
        let others = others.map(|done| done.unwrap_or_else(|panic| resume_unwind(panic)));
        std::iter::once(mine).chain(others).collect()
    });
    let mut done: Vec<_> = done?.into_iter().flatten().collect();
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, found)| found).collect())
}

/// Divides the packets of `region` that enter at `entry` into classes with the same fate for each of `walkers`.
pub(super) fn divide<const N: usize>(
    walkers: &[Walker<'_, '_, '_>; N],
    entry: Entry,
    region: Region,
    mut visit: impl FnMut(Class<N>) -> Result<(), Gap>,
) -> Result<(), Gap> {
    let mut todo = vec![region];
    while let Some(mut region) = todo.pop() {
        if region.is_empty() {
            continue;
        }
        if let Some(rest) = region.split_off(MOST_RANGES) {
            todo.push(std::mem::replace(&mut region, rest));
        }
        let family = walkers[0].family;
        let flow = witness(entry, family, &region);
        let seen = Rc::new(Seen::new(region.clone()));
        let mut fates = [const { Fate::NONE }; N];
        for (walker, of) in walkers.iter().zip(&mut fates) {
            *of = fate(walker, &flow, &seen)?;
        }
        let class = seen.region();
        for field in Field::ALL {
            let mut rest = region.clone();
            rest.of_mut(field).subtract(class.of(field));
            if !rest.is_empty() {
                todo.push(rest);
            }
            region.of_mut(field).clone_from(class.of(field));
        }
        visit(Class {
            entry,
            family,
            region: class,
            fates,
        })?;
    }
    Ok(())
}

/// Returns the packets of `space` whose fate on `node` is one of those `wanted`, as classes.
///
/// # Errors
///
/// Missing data about the node; or there are more than `most` classes.
pub(crate) fn with_fate<'n>(
    node: &'n NodeSnapshot<'n>,
    space: &Space,
    most: usize,
    wanted: impl Fn(&Fate) -> bool + Sync,
) -> Result<Vec<Class<1>>, Gap> {
    let world = World::whole(node, space.family);
    let found = classes([&world], space, most, Vec::new, |found, class: Class<1>| {
        if wanted(&class.fates[0]) {
            found.push(class);
        }
    })?;
    Ok(found.into_iter().flatten().collect())
}

/// Returns for each of `flows`, which are of one family, its fate on `node` and the packets that share it.
///
/// # Errors
///
/// Missing data about the node.
pub fn around<'n>(
    node: &'n NodeSnapshot<'n>,
    family: Family,
    flows: &[Flow],
) -> Result<Vec<(Region, Fate)>, Gap> {
    let world = World::whole(node, family);
    let walker = Walker::recording(&world, family);
    let any = || Ranges::between(0, u128::MAX);
    let around = flows.iter().map(|flow| {
        let marks = Ranges::between(flow.mark.into(), flow.mark.into());
        let seen = Rc::new(Seen::new(Region::new([any(), any(), any(), any(), marks])));
        let fate = fate(&walker, flow, &seen)?;
        Ok((seen.region(), fate))
    });
    around.collect()
}

/// Returns a packet of `region`, which is not empty.
pub(super) fn witness(entry: Entry, family: Family, region: &Region) -> Flow {
    let last = |field| region.of(field).last().unwrap_or_default();
    let proto = u8::try_from(last(Field::Proto)).unwrap_or_default();
    Flow {
        entry,
        source: (entry != Entry::Host).then(|| address(family, last(Field::Source))),
        destination: address(family, last(Field::Destination)),
        port: u16::try_from(last(Field::Port)).unwrap_or_default(),
        mark: u32::try_from(last(Field::Mark)).unwrap_or_default(),
        carried: Carried::default(),
        proto: Proto::from_number(proto),
        established: false,
    }
}
