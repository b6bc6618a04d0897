<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\LockClient;

/**
 * @internal Finds the address of the service in a process of its own: a name server that does not answer blocks PHP
 * for seconds, and in the keeper the loss of a lease would be told too late.
 */
final class Lookup
{
    /** Between the starts of two processes, in seconds. */
    private const PAUSE = 1.0;

    private float $next = 0.0;

    /** @var ?resource */
    private $process = null;

    /** @var array<int, resource> */
    private array $pipes = [];

    /** @param array<string, mixed> $settings of the client, without its API key */
    public function __construct(private readonly array $settings)
    {
    }

    /** Goes on, and waits for nothing; returns the address that has answered, once. */
    public function winner(): ?string
    {
        if ($this->process === null) {
            Clock::now() < $this->next || $this->start();
            return null;
        }
        [$read, $none] = [[$this->pipes[1]], null];
        if (!@stream_select($read, $none, $none, 0)) {
            return null;
        }
        $said = (string) fgets($this->pipes[1]);
        $this->end();
        return filter_var(trim($said), FILTER_VALIDATE_IP) ?: null;
    }

    /** The work of the process. */
    public static function run(): void
    {
        $client = new LockClient(...json_decode((string) fgets(STDIN), true));
        fwrite(STDOUT, $client->service()->findAddress() . "\n");
    }

    public function __destruct()
    {
        $this->end();
    }

    private function start(): void
    {
        $this->next = Clock::now() + self::PAUSE;
        $files = [['pipe', 'r'], ['pipe', 'w'], ['file', '/dev/null', 'w']];
        $php = Keeper::command(PHP_BINARY, 'look');
        $process = function_exists('proc_open') ? @proc_open($php, $files, $this->pipes, '/') : false;
        if (is_resource($process)) {
            $this->process = $process;
            @fwrite($this->pipes[0], json_encode($this->settings, JSON_PRESERVE_ZERO_FRACTION) . "\n");
        }
    }

    /** No address is wanted any more, for the time being. */
    public function end(): void
    {
        if ($this->process !== null) {
            proc_terminate($this->process, 9); // PHP waits for its end.
            [$this->process, $this->pipes] = [null, []];
        }
    }
}
