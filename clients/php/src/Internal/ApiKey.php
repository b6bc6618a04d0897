<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal The API key, from a text or a file, which is read for each request: a new key needs no restart. */
final class ApiKey
{
    /** Bytes of a file with an API key. */
    private const LONGEST = 4096;

    /** The only text that a header may have. */
    private const FORM = '/^[\x20-\x7e]+$/D';

    /** @param string $file empty for none */
    private function __construct(private ?Secret $key, private readonly string $file = '')
    {
    }

    /**
     * The key, or that in the file; if both are absent, that of LOCKKEEPER_API_KEY_FILE or LOCKKEEPER_API_KEY.
     *
     * @param ?string $key empty for none, whatever the variables say
     *
     * @throws \InvalidArgumentException
     */
    public static function of(#[\SensitiveParameter] ?string $key, ?string $file): self
    {
        $file = $key === null ? Environment::file($file, 'API_KEY_FILE') : '';
        if ($file === '') {
            $key = Environment::text($key, 'API_KEY') ?? '';
            return new self($key === '' ? null : new Secret($key));
        }
        $own = new self(null, $file);
        $own->text() ?? throw new \InvalidArgumentException("The file $file has no API key that can be read.");
        return $own;
    }

    public function text(): ?string
    {
        $text = $this->file === '' ? '' : @file_get_contents($this->file, length: self::LONGEST);
        $text = rtrim((string) $text, "\r\n");
        if (preg_match(self::FORM, $text)) {
            $this->key = new Secret($text); // Else it is being replaced, and the one before still counts.
        }
        return $this->key?->text();
    }

    /** @return array<string, mixed> by the names of LockClient */
    public function settings(): array
    {
        return $this->file === '' ? ['apiKey' => $this->key ?? ''] : ['apiKeyFile' => $this->file];
    }
}
