<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\KeeperUnavailable;

/**
 * @internal A process beside this one that refreshes leases while this one lives, whatever it is busy with, and
 * ends with it, however it ends. Not a stream of our own: PHP lets every program that it starts, and every
 * forked child, inherit a connection, so the lease would outlive the process; and PHP reads nothing while it
 * works. The pipes to the keeper are closed in programs that are started.
 */
final class Keeper
{
    /** Seconds that the process may take to start, on a busy machine. */
    private const START = 20.0;

    /**
     * Seconds that an answer may take: from the first question without one on, where nothing is known otherwise; and
     * where it is known that the lease lasts, or that the process is suspended.
     */
    private const ANSWER = 10.0;
    private const QUICK_ANSWER = 0.25;

    /** Seconds without an end. */
    private const LONG = 1e9;

    /** Ignored signals stay ignored in the program: a service manager signals all processes of a service. */
    private const TRAPS = 'trap "" HUP INT QUIT TERM; exec 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-;';
    private const CHILD = self::TRAPS . ' exec "$@"';
    private const DETACHED = self::TRAPS . ' exec 3<&0; "$@" <&3 3<&- &';

    private const OPTIONS = [
        'auto_prepend_file=', 'auto_append_file=', 'display_errors=1', 'html_errors=0', 'log_errors=0',
        'opcache.enable_cli=0', 'opcache.preload=', 'xdebug.mode=off',
    ];

    /** @var \WeakMap<self, bool>|null those that end with this process */
    private static ?\WeakMap $all = null;

    /** @var ?resource */
    private $process = null;

    /** @var array<int, resource> */
    private array $pipes = [];

    /** @var array<int, array<string, mixed>> what was ordered to be kept */
    private array $orders = [];

    /** @var ?resource the file that programs which this process starts have locked as well */
    private $file = null;

    private readonly int $pid;
    private string $heard = '';
    private int $questions = 0;

    /** Since when there is a question without an answer. */
    private ?float $silent = null;
    private int $ids = 0;

    /** @param bool $isForChildren whether programs that this process starts keep the lease, too: one lease only */
    public function __construct(private readonly Service $service, public readonly bool $isForChildren = false)
    {
        $this->pid = (int) getmypid();
        if (!$isForChildren) {
            self::$all ??= new \WeakMap();
            self::$all[$this] = true;
        }
    }

    public function isOfThisProcess(): bool
    {
        return $this->pid === getmypid();
    }

    /**
     * Has a process that listens.
     *
     * @throws KeeperUnavailable
     */
    public function ready(): void
    {
        if ($this->process !== null) {
            return;
        }
        if (!function_exists('proc_open')) {
            throw new KeeperUnavailable('A lease is kept by another process, and proc_open is switched off.');
        }
        $script = $this->isForChildren ? self::DETACHED : self::CHILD;
        $php = self::command($this->service->php ?? self::php());
        $files = [['pipe', 'r'], ['pipe', 'w'], ['file', '/dev/null', 'w']];
        $command = ['/bin/sh', '-c', $script, 'sh', ...$php];
        $process = @proc_open($command, $files + self::inherited(), $this->pipes, '/');
        $this->process = is_resource($process) ? $process : null;
        array_map(static fn ($pipe) => stream_set_blocking($pipe, false), $this->pipes);
        $parent = $this->isForChildren ? null : $this->pid;
        $this->tell(['client' => $this->service->settings(), 'parent' => $parent]);
        $until = Clock::now() + self::START;
        $said = [];
        while (($line = $this->line($until)) !== null) {
            if ($line === 'ready') {
                return;
            }
            $said[] = $line;
        }
        $why = implode(' ', $said) ?: 'it does not say why';
        $this->part();
        throw new KeeperUnavailable("The process that keeps leases, $php[0], does not start: " . substr($why, 0, 500));
    }

    /**
     * Keeps a lease from now on.
     *
     * @param Grant $grant   what is known of it
     * @param float $ttl     seconds for which it is refreshed
     * @param float $longest seconds for which it is kept
     *
     * @return int its number here
     *
     * @throws KeeperUnavailable
     */
    public function keep(Ticket $ticket, Grant $grant, float $ttl, float $longest, ?int $signal): int
    {
        $id = ++$this->ids;
        $path = $this->isForChildren ? $this->file() : null;
        $named = ['key' => $ticket->key, 'token' => $ticket->token, 'fencing_token' => $ticket->fencingToken];
        $end = Clock::now() + $grant->remaining();
        $times = ['ttl' => $ttl, 'end' => $end, 'last' => Clock::now() + min(self::LONG, $longest)];
        $more = ['capped' => $grant->isCapped, 'signal' => $signal, 'file' => $path, 'again' => false];
        $more += ['address' => $this->service->address()];
        $this->orders[$id] = ['do' => 'keep', 'id' => $id] + $named + $times + $more;
        $this->tell($this->orders[$id]);
        $answer = $this->ask($id, 0.0);
        $path === null || @unlink($path);
        if ($answer === null) {
            unset($this->orders[$id]);
            throw new KeeperUnavailable('The process that keeps leases does not answer.');
        }
        return $id;
    }

    /**
     * Until when a lease lasts at least, or why it is lost.
     *
     * @param float $known until when it lasts as far as is known
     *
     * @return float|string|null null if there is no answer
     */
    public function ask(int $id, float $known): float|string|null
    {
        $now = Clock::now();
        $this->silent ??= $now;
        $isQuick = $known > $now || $this->isSuspended();
        $until = $isQuick ? $now + self::QUICK_ANSWER : $this->silent + self::ANSWER;
        for ($tries = 0; $tries < 2; $tries++) {
            $number = ++$this->questions;
            $this->tell(['do' => 'ask', 'id' => $id, 'number' => $number]);
            while (($line = $this->line($until)) !== null) {
                $answer = json_decode($line, true);
                if (($answer['number'] ?? null) === $number) {
                    $this->silent = null;
                    return $answer['lost'] ?? (float) $answer['end'];
                }
                $this->silent = $now; // An earlier question has its answer.
                $until = max($until, Clock::now() + ($isQuick ? self::QUICK_ANSWER : self::ANSWER));
            }
            if (!$this->isGone() || $this->isForChildren) {
                return null;
            }
            try {
                $this->restart();
            } catch (KeeperUnavailable) {
                return null;
            }
        }
        return null;
    }

    /** From now on its loss is none. */
    public function drop(int $id): void
    {
        if (isset($this->orders[$id]) && $this->isOfThisProcess()) {
            unset($this->orders[$id]);
            $this->tell(['do' => 'drop', 'id' => $id]);
        }
    }

    /** Ends those processes that end with this one, before PHP waits for them. */
    public static function endAll(): void
    {
        foreach (self::$all ?? [] as $keeper => $_) {
            $keeper->end();
        }
    }

    public function __destruct()
    {
        $this->end();
    }

    private function end(): void
    {
        if ($this->isOfThisProcess() && $this->process !== null) {
            // A forked child may have the pipe, so closing it is not enough.
            $this->isForChildren || $this->tell(['do' => 'end']);
            $this->part();
        }
    }

    private function part(): void
    {
        [$this->process, $this->pipes, $this->heard, $this->file, $this->silent] = [null, [], '', null, null];
    }

    /** The keeper was killed: its leases are still there for a while. */
    private function restart(): void
    {
        $this->part();
        $this->ready();
        foreach ($this->orders as $order) {
            $this->tell(['again' => true] + $order);
        }
    }

    /** Whether the process is suspended, where the system tells. */
    private function isSuspended(): bool
    {
        $pid = $this->process === null ? 0 : proc_get_status($this->process)['pid'];
        return preg_match('/\) T /', (string) @file_get_contents("/proc/$pid/stat")) === 1;
    }

    private function isGone(): bool
    {
        return $this->pipes === [] || feof($this->pipes[1]);
    }

    /** @param array<string, mixed> $order */
    private function tell(array $order): void
    {
        if ($this->pipes === []) {
            return;
        }
        $show = static fn (mixed $value): mixed => $value instanceof Secret ? $value->text() : $value;
        $order = array_map($show, $order);
        isset($order['client']) && $order['client'] = array_map($show, $order['client']);
        $text = json_encode($order, JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION) . "\n";
        for ($until = Clock::now() + self::ANSWER; $text !== '' && Clock::now() < $until;) {
            $written = @fwrite($this->pipes[0], $text);
            if ($written === false) {
                return; // The keeper is gone, and the next question finds it.
            }
            $text = substr($text, $written);
            $text === '' || Clock::sleep(0.01);
        }
    }

    /** The next line; null at the end, or if none comes in time. */
    private function line(float $until): ?string
    {
        while (!str_contains($this->heard, "\n")) {
            if ($this->isGone()) {
                return null;
            }
            $seconds = max(0.0, $until - Clock::now());
            [$read, $none] = [[$this->pipes[1]], null];
            // A signal ends it early, with a warning.
            $ready = @stream_select($read, $none, $none, (int) $seconds, (int) (fmod($seconds, 1.0) * 1e6));
            $piece = $ready > 0 ? fread($this->pipes[1], 8192) : '';
            $this->heard .= $piece;
            if ($piece === '' && Clock::now() >= $until) {
                return null;
            }
        }
        [$line, $this->heard] = explode("\n", $this->heard, 2);
        return $line;
    }

    /** Locks a new file, which every program that is started from now on inherits. */
    private function file(): string
    {
        $path = tempnam(sys_get_temp_dir(), 'lockkeeper');
        $file = $path === false ? false : fopen($path, 'r+');
        if ($file === false || !flock($file, LOCK_EX)) {
            throw new KeeperUnavailable('No file can be made in the directory for temporary files.');
        }
        $this->file = $file;
        return $path;
    }

    /**
     * What the keeper has in place of the files, locks and sockets of this process that the shell cannot close: of
     * as many as there are free descriptors, because each takes one while the keeper is started.
     *
     * @return array<int, array{string, string, string}> by descriptor
     */
    private static function inherited(): array
    {
        $open = array_map('intval', @is_dir('/dev/fd') ? scandir('/dev/fd') : []);
        $limit = function_exists('posix_getrlimit') ? posix_getrlimit()['soft openfiles'] : 256;
        $free = $limit === 'unlimited' ? count($open) : max(0, $limit - count($open) - 20);
        $files = array_filter($open, static fn (int $file) => $file > 9);
        return array_fill_keys(array_slice($files, 0, $free), ['file', '/dev/null', 'r']);
    }

    /** @return list<string> the command of a process of this package, with the arguments of keep.php */
    public static function command(string $php, string ...$arguments): array
    {
        $options = array_merge(...array_map(static fn (string $option) => ['-d', $option], self::OPTIONS));
        return [$php, ...$options, __DIR__ . '/keep.php', ...$arguments];
    }

    private static function php(): string
    {
        if (PHP_BINARY !== '' && in_array(PHP_SAPI, ['cli', 'cli-server'], true)) {
            return PHP_BINARY;
        }
        $own = sprintf('%s/php%d.%d', PHP_BINDIR, PHP_MAJOR_VERSION, PHP_MINOR_VERSION);
        return @is_executable($own) ? $own : PHP_BINDIR . '/php';
    }
}
