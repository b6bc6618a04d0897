//! Faults of processes and networks, and the way to the others.

use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::history::Nanos;
use crate::nemesis::Nemesis;
use crate::nemesis::kinds::{Kind, Net, Target};
use crate::servers::instance::Log;
use crate::servers::shim::Word;

const FLOOD: usize = 300;

/// For how long a network holds back what it lets through in the end, each way: together less than the
/// deadline of a call.
const HELD: Duration = Duration::from_millis(400);

/// The most KiB of memory that an instance still gets where it gets next to none.
const MORE_KIB: u64 = 64;

const ETIMEDOUT: i64 = 110;
const ECONNRESET: i64 = 104;

/// Questions of which the answer is lost.
const QUESTIONS: [&[u8]; 5] =
    [b"POST /locks", b"/refresh", b"DELETE /locks", b"POST /hold", b"GET "];

impl Nemesis<'_> {
    /// Strikes a fault, and returns for how long it may be felt after its end.
    pub(super) async fn strike(&mut self, kind: Kind, target: Target) -> io::Result<Nanos> {
        match target {
            Target::Instance(number) => self.strike_instance(kind, number).await?,
            Target::Instances if kind == Kind::ListChange => self.site.use_nodes(4).await?,
            Target::Instances => {
                for instance in &mut self.site.instances {
                    instance.roll(Log::File).await?;
                }
            }
            Target::Client(number) | Target::Link(number) => {
                self.strike_network(kind, number).await
            }
            Target::Socket(number) => self.strike_socket(kind, number),
            Target::Disk => self.strike_disk(kind),
            Target::File => self.strike_file(kind).await?,
            Target::Server(number) => self.strike_server(kind, number).await?,
            Target::Servers => self.strike_servers(kind).await?,
            Target::Sentinel(number) => self.site.sentinels[number].process.kill(),
            Target::Data(number) => return Ok(self.strike_data(kind, number)),
        }
        Ok(0)
    }

    pub(super) async fn heal(&mut self, kind: Kind, target: Target) -> io::Result<()> {
        match target {
            Target::Instance(number) => self.heal_instance(number).await?,
            Target::Instances if kind == Kind::ListChange => self.site.use_nodes(3).await?,
            Target::Instances => (),
            Target::Client(number) => {
                self.floods.clear();
                self.site.fronts[number].heal();
            }
            Target::Link(number) => {
                let network = &self.site.links[number].proxy;
                if kind == Kind::Link(Net::HungUp) {
                    network.change(|flow| flow.hang_ups += 1);
                }
                network.heal();
            }
            Target::Socket(number) => self.site.instances[number].shim.heal(),
            Target::Disk => self.heal_disk().await?,
            Target::File => self.heal_file(kind).await?,
            Target::Server(_) | Target::Servers | Target::Sentinel(_) => {
                self.heal_servers(kind, target).await?;
            }
            Target::Data(number) => self.heal_data(kind, number),
        }
        Ok(())
    }

    async fn strike_instance(&mut self, kind: Kind, number: usize) -> io::Result<()> {
        let instance = &mut self.site.instances[number];
        let process = &mut instance.process;
        match kind {
            Kind::InstanceStop => process.signal(Signal::STOP),
            Kind::InstanceStarved => drop(self.starving.spawn(starve(process.pid()))),
            Kind::InstanceMemory => process.limit_memory(Some(self.chance.u64(..MORE_KIB)))?,
            Kind::InstanceTerm => process.end().await,
            Kind::LogClosed => instance.roll(Log::Closed).await?,
            Kind::LogFull => instance.roll(Log::Full).await?,
            Kind::LogUnread => instance.roll(Log::Unread).await?,
            _ => process.kill(),
        }
        Ok(())
    }

    async fn heal_instance(&mut self, number: usize) -> io::Result<()> {
        self.starving.shutdown().await;
        let instance = &mut self.site.instances[number];
        instance.process.limit_memory(None)?;
        instance.process.signal(Signal::CONT);
        if instance.log == Log::File && instance.process.runs() {
            return Ok(());
        }
        instance.roll(Log::File).await
    }

    async fn strike_network(&mut self, kind: Kind, number: usize) {
        let delay = Duration::from_millis([1, 10, 40][self.chance.usize(..3)]);
        let times = self.chance.u32(1..20);
        let question = QUESTIONS[self.chance.usize(..QUESTIONS.len())];
        let (net, network, question) = match kind {
            Kind::Front(net) => (net, &self.site.fronts[number], question),
            Kind::Link(net) => (net, &self.site.links[number].proxy, &b"lock:"[..]),
            _ => return self.flood(number).await,
        };
        network.change(|flow| match net {
            Net::Delay => (flow.delay, flow.jitter) = (delay, delay / 2),
            Net::Held | Net::HungUp => flow.delay = HELD + delay,
            Net::Stalled => flow.stalled = true,
            Net::Swallow => (flow.swallow_there, flow.swallow_back) = (true, true),
            Net::SwallowThere => flow.swallow_there = true,
            Net::SwallowBack => flow.swallow_back = true,
            Net::HalfClose => flow.half_closes += 1,
            Net::AnswerLost => flow.loses = Some((question, times)),
            Net::Cut => flow.cuts += 1,
        });
    }

    /// Makes the clock of an instance step, or its connections to a server fail.
    fn strike_socket(&mut self, kind: Kind, number: usize) {
        let servers: Vec<u16> = self.site.links.iter().map(|link| link.proxy.port).collect();
        let shim = &self.site.instances[number].shim;
        if kind == Kind::InstanceTime {
            let seconds = self.chance.i64(-3_600..3_600);
            return shim.set(Word::Ahead, seconds * 1_000_000_000);
        }
        let errno = if self.chance.bool() { ETIMEDOUT } else { ECONNRESET };
        shim.set(Word::LinkErrno, errno);
        shim.set(Word::Port, i64::from(servers[self.chance.usize(..servers.len())]));
        let word = if kind == Kind::LinkWriteFails { Word::Writes } else { Word::Reads };
        shim.set(word, self.chance.i64(1..6));
    }

    /// Opens connections that send the beginning of a question, or nothing.
    async fn flood(&mut self, number: usize) {
        let address = self.site.instances[number].address();
        for turn in 0..FLOOD {
            let connecting = TcpStream::connect(address);
            let connected = tokio::time::timeout(Duration::from_millis(100), connecting).await;
            let Ok(Ok(mut stream)) = connected else { break };
            if turn % 2 == 0 {
                // The service may have closed it already.
                let _ = stream.write_all(b"POST /locks/k0 HTTP/1.1\r\nhost:").await;
            }
            self.floods.push(stream);
        }
    }
}

/// Lets a process run for a fifth of the time.
async fn starve(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else { return };
    loop {
        for (signal, time) in [(Signal::STOP, 40), (Signal::CONT, 10)] {
            // It may have ended; its number is its own until the nemesis has waited for it.
            let _ = kill_process(pid, signal);
            sleep(Duration::from_millis(time)).await;
        }
    }
}
