<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal A text that no dump, export or serialisation shows: it is kept outside of the object. */
final class Secret
{
    /** @var \WeakMap<self, string>|null */
    private static ?\WeakMap $texts = null;

    public function __construct(#[\SensitiveParameter] string $text)
    {
        self::$texts ??= new \WeakMap();
        self::$texts[$this] = $text;
    }

    public function text(): string
    {
        return self::$texts[$this];
    }

    /** @return never */
    public function __serialize(): array
    {
        throw new \LogicException('A secret is not serialised.');
    }

    /** @param array<mixed> $data */
    public function __unserialize(array $data): void
    {
        throw new \LogicException('A secret is not serialised.');
    }

    private function __clone()
    {
    }
}
