<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

/** The proxy of faults.php, as a process. */
final class Faults
{
    /** @var resource */
    private $process;
    /** @var resource */
    private $lines;
    public readonly string $url;

    /**
     * @param list<string> $faults
     * @param string       ...$tls the certificate that it shows, the authority of those that it demands, the path of a
     *                             unix socket in place of a port, and the address and port to listen on
     */
    public function __construct(string $upstream, array $faults, string ...$tls)
    {
        $command = [PHP_BINARY, __DIR__ . '/faults.php', $upstream, implode(',', $faults), ...$tls];
        $this->process = proc_open($command, [1 => ['pipe', 'w']], $pipes);
        $this->lines = $pipes[1];
        $this->url = ($tls === [] ? 'http' : 'https') . '://127.0.0.1:' . trim((string) fgets($this->lines));
    }

    /** @return list<string> what was asked: fault, method, path, protocol, token, body */
    public function requests(): array
    {
        stream_set_blocking($this->lines, false);
        return array_filter(explode("\n", (string) stream_get_contents($this->lines)));
    }

    public function __destruct()
    {
        proc_terminate($this->process, 9);
        proc_close($this->process);
    }
}
