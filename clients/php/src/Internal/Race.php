<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/**
 * @internal The addresses of a name, to which connections are tried side by side. Of one family curl tries one after
 * the other, each for a part of the time for a connection.
 */
final class Race
{
    /** From one address to the next, in seconds. */
    public const STAGGER = 0.25;

    private float $next = 0.0;

    /** @var array<string, resource> by address */
    private array $open = [];

    /** @param list<string> $waiting addresses */
    public function __construct(private array $waiting, private readonly int $port)
    {
    }

    /** Between those of its host, if it has several. IPv6 is left to curl: PHP resolves no such name by itself. */
    public static function of(string $url): self
    {
        $parts = parse_url($url);
        $addresses = @gethostbynamel($parts['host'] ?? '') ?: [];
        $port = $parts['port'] ?? (strtolower($parts['scheme'] ?? '') === 'https' ? 443 : 80);
        $first = array_shift($addresses); // Curl tries it already.
        return new self($addresses === [] ? [] : [...$addresses, $first], $port);
    }

    /** Goes on, and waits for nothing; returns the address that has answered first. */
    public function winner(): ?string
    {
        while ($this->waiting !== [] && ($this->open === [] || Clock::now() >= $this->next)) {
            $address = array_shift($this->waiting);
            $flags = STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT;
            $socket = @stream_socket_client("tcp://$address:$this->port", $code, $why, null, $flags);
            $socket === false || $this->open[$address] = $socket;
            $this->next = Clock::now() + self::STAGGER;
        }
        [$connected, $none] = [$this->open, null];
        if ($connected === [] || !@stream_select($none, $connected, $none, 0)) {
            return null;
        }
        foreach (array_keys($connected) as $address) {
            if (stream_socket_get_name($this->open[$address], true) !== false) {
                return $address;
            }
            unset($this->open[$address]); // It refuses.
        }
        return null;
    }
}
