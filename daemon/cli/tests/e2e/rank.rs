//! The rank's side: this test program again, started by [`crate::harness::Rank`], doing what it is told line by line.
//!
//! | command | what it does |
//! |---|---|
//! | `id [several]` | asks for a communicator id, for ranks on several nodes |
//! | `join ID RANK SIZE [join_ms=N] [timeout_ms=N] [ring=N]` | joins |
//! | `call OPERATION TYPE REDUCTION COUNT ROOT` | runs a collective in place, answers with the value all elements have |
//! | `post ...` | the same without waiting |
//! | `wait` | waits for the oldest posted one |
//! | `loop COUNT [SECONDS]` | allreduces, each result checked, until one fails or all ranks' time is over; answers after the first and at the end |
//! | `series N COUNT` | N allreduces, one after the other; answers with the microseconds that they took |
//! | `many N COUNT` | submits N allreduces before it waits for any, and checks every result |
//! | `abort`, `leave`, `status` | as in the library |
//!
//! Every rank's elements are its number plus one; in a `loop` its number plus that of the round.

use std::{
    collections::VecDeque,
    io::{self, BufRead as _, Write as _},
    time::{Duration, Instant},
};

use ringway_client::{Arena, Buffer, Client, Communicator, Element, Pending, Reduction};
use ringway_types::{DataType, Operation};

/// The test that is the rank's program, when the variable is set.
pub(crate) const TEST: &str = "rank::interpreter";
pub(crate) const VARIABLE: &str = "RINGWAY_TEST_RANK";

#[test]
fn interpreter() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("prctl");
    let client = Client::connect().expect("the daemon");
    let mut state = State { client, arena: None, world: None, posted: VecDeque::new() };
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = state.obey(&words);
        say(&answer);
    }
    // Neither the test's own report nor destructors: the process ends as a program would.
    std::process::exit(0);
}

fn say(answer: &Result<String, String>) {
    let (head, text) = match answer {
        Ok(text) => ("ok", text),
        Err(text) => ("error", text),
    };
    let text = text.replace('\n', " ");
    let mut out = io::stdout().lock();
    // The harness of the test may have begun a line.
    writeln!(out, "\n@{head} {text}").and_then(|()| out.flush()).expect("the test listens");
}

type Posted = Box<dyn FnOnce() -> Result<String, String>>;

struct State {
    client: Client,
    arena: Option<Arena>,
    /// Lives as long as the process, so that operations can be kept beside it.
    world: Option<&'static Communicator>,
    posted: VecDeque<Posted>,
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl State {
    fn obey(&mut self, words: &[&str]) -> Result<String, String> {
        match words {
            ["id"] => self.client.unique_id(false).map(|id| id.to_string()).map_err(text),
            ["id", "several"] => self.client.unique_id(true).map(|id| id.to_string()).map_err(text),
            ["join", id, rank, size, options @ ..] => self.join(id, rank, size, options),
            ["call", call @ ..] => self.submit(call)?(),
            ["post", call @ ..] => {
                let posted = self.submit(call)?;
                self.posted.push_back(posted);
                Ok("posted".to_owned())
            }
            ["wait"] => self.posted.pop_front().ok_or("nothing is posted")?(),
            ["loop", count] => self.repeat(count.parse().map_err(text)?, None),
            ["loop", count, seconds] => {
                let time = Duration::from_secs(seconds.parse().map_err(text)?);
                self.repeat(count.parse().map_err(text)?, Some(time))
            }
            ["series", number, count] => {
                self.series(number.parse().map_err(text)?, count.parse().map_err(text)?)
            }
            ["many", number, count] => self.many(number.parse().map_err(text)?, count.parse().map_err(text)?),
            ["abort"] => self.world()?.abort().map(|()| "aborted".to_owned()).map_err(text),
            ["status"] => self.client.status().map_err(text),
            _ => Err(format!("unknown command {words:?}")),
        }
    }

    fn world(&self) -> Result<&'static Communicator, String> {
        self.world.ok_or_else(|| "not joined".to_owned())
    }

    fn arena(&mut self) -> Result<Arena, String> {
        if self.arena.is_none() {
            self.arena = Some(self.client.arena(64 << 20).map_err(text)?);
        }
        self.arena.clone().ok_or_else(String::new)
    }

    fn join(&mut self, id: &str, rank: &str, size: &str, options: &[&str]) -> Result<String, String> {
        let id = id.parse().map_err(text)?;
        let (rank, size) = (rank.parse().map_err(text)?, size.parse().map_err(text)?);
        let mut builder = self.client.communicator(&id, rank, size).timeout(Duration::from_secs(300));
        for option in options {
            let (name, value) = option.split_once('=').ok_or("name=value")?;
            let value: u32 = value.parse().map_err(text)?;
            let time = Duration::from_millis(value.into());
            builder = match name {
                "join_ms" => builder.join_timeout(time),
                "timeout_ms" => builder.timeout(time),
                "ring" => builder.ring_size(value),
                _ => return Err(format!("unknown option {name}")),
            };
        }
        let world = builder.join().map_err(text)?;
        let nodes = world.nodes();
        self.world = Some(Box::leak(Box::new(world)));
        Ok(format!("{nodes} nodes"))
    }

    fn submit(&mut self, call: &[&str]) -> Result<Posted, String> {
        let &[operation, datatype, reduction, count, root] = call else {
            return Err("five words".to_owned());
        };
        let operation = Operation::from_name(operation).ok_or("no such operation")?;
        let datatype = DataType::from_name(datatype).ok_or("no such type")?;
        let call = Call {
            world: self.world()?,
            arena: self.arena()?,
            operation,
            reduction: Reduction::from_name(reduction).unwrap_or(Reduction::Sum),
            count: count.parse().map_err(text)?,
            root: root.parse().map_err(text)?,
        };
        let value = u8::try_from(call.world.rank() + 1).map_err(text)?;
        match datatype {
            DataType::U8 => call.submit(value),
            DataType::I32 => call.submit(i32::from(value)),
            DataType::U64 => call.submit(u64::from(value)),
            DataType::F32 => call.submit(f32::from(value)),
            DataType::F64 => call.submit(f64::from(value)),
            other => Err(format!("{other} is not used in these tests")),
        }
    }

    fn repeat(&mut self, count: usize, time: Option<Duration>) -> Result<String, String> {
        let (world, arena) = (self.world()?, self.arena()?);
        let mut buffer = arena.buffer::<f32>(count).map_err(text)?;
        let (rank, size) = (world.rank() as f32, world.size() as f32);
        let (begun, mut longest) = (Instant::now(), Duration::ZERO);
        for round in 0_u32.. {
            // Other values each time, so that what is left of the last one shows; all sums are exact.
            let of_round = (round % 1000) as f32;
            buffer.fill(rank + of_round);
            let called = Instant::now();
            buffer = world.allreduce_in_place(buffer, Reduction::Sum).map_err(text)?.wait().map_err(text)?;
            longest = longest.max(called.elapsed());
            let expected = size * of_round + size * (size - 1.0) / 2.0;
            if let Some(wrong) = buffer.iter().find(|value| **value != expected) {
                return Err(format!("round {round}: {wrong} where {expected} was expected"));
            }
            if round == 0 {
                say(&Ok("looping".to_owned()));
            }
            if let Some(time) = time
                && self.all_agree(begun.elapsed() >= time)?
            {
                return Ok(format!("{} rounds, the longest of {} ms", round + 1, longest.as_millis()));
            }
        }
        Ok(String::new())
    }

    /// Whether every rank says yes, which all must be asked.
    fn all_agree(&mut self, agrees: bool) -> Result<bool, String> {
        let (world, mut buffer) = (self.world()?, self.arena()?.buffer::<i32>(1).map_err(text)?);
        buffer.fill(i32::from(agrees));
        let buffer = world.run(|w| w.allreduce_in_place(buffer, Reduction::Min)).map_err(text)?;
        Ok(buffer.first() == Some(&1))
    }

    fn series(&mut self, number: u32, count: usize) -> Result<String, String> {
        let (world, arena) = (self.world()?, self.arena()?);
        let mut buffer = arena.buffer::<f32>(count).map_err(text)?;
        let begun = Instant::now();
        for _ in 0..number {
            buffer = world.run(|w| w.allreduce_in_place(buffer, Reduction::Max)).map_err(text)?;
        }
        Ok(begun.elapsed().as_micros().to_string())
    }

    fn many(&mut self, number: u16, count: usize) -> Result<String, String> {
        let (world, arena) = (self.world()?, self.arena()?);
        let mut pending = Vec::new();
        for n in 0..number {
            let mut buffer = arena.buffer::<f32>(count).map_err(text)?;
            buffer.fill(f32::from(n));
            pending.push(world.allreduce_in_place(buffer, Reduction::Sum).map_err(text)?);
        }
        for (n, pending) in (0..number).zip(pending) {
            let expected = f32::from(n) * world.size() as f32;
            let buffer = pending.wait().map_err(text)?;
            if let Some(wrong) = buffer.iter().find(|v| **v != expected) {
                return Err(format!("operation {n}: {wrong} where {expected} was expected"));
            }
        }
        Ok(format!("{number} exact"))
    }
}

struct Call {
    world: &'static Communicator,
    arena: Arena,
    operation: Operation,
    reduction: Reduction,
    count: usize,
    root: u32,
}

impl Call {
    fn submit<T: Element>(self, value: T) -> Result<Posted, String> {
        let Self { world, arena, operation, reduction, count, root } = self;
        if operation == Operation::Barrier {
            let pending = world.barrier().map_err(text)?;
            return Ok(Box::new(move || pending.wait().map(|()| "passed".to_owned()).map_err(text)));
        }
        let mut buffer = arena.buffer::<T>(count).map_err(text)?;
        buffer.fill(value);
        let pending: Pending<'static, Buffer<T>> = match operation {
            Operation::Allreduce => world.allreduce_in_place(buffer, reduction),
            Operation::Scan => world.scan_in_place(buffer, reduction),
            Operation::Reduce => world.reduce_in_place(buffer, root, reduction),
            Operation::Broadcast => world.broadcast_in_place(buffer, root),
            other => return Err(format!("{other} is not used in these tests")),
        }
        .map_err(text)?;
        Ok(Box::new(move || {
            let buffer = pending.wait().map_err(text)?;
            match buffer.first() {
                None => Ok("nothing".to_owned()),
                Some(first) if buffer.iter().all(|v| v == first) => Ok(format!("{first:?}")),
                Some(_) => Err("elements differ".to_owned()),
            }
        }))
    }
}
