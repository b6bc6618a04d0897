<?php

declare(strict_types=1);

/**
 * A file that refuses late writers, for PHP 7.4 and newer without any library.
 *
 * Its first line has the greatest fencing token that it has seen and the SHA-256 of that lease's
 * token, its content follows. Both change by one rename, so neither is ever there without the other.
 */
final class FencedFile
{
    private string $path;

    public function __construct(string $path)
    {
        $this->path = $path;
    }

    /**
     * Makes the new content of the old one, unless a later lease has been here before.
     *
     * @param callable(string): string $change
     * @return bool whether the file has changed; false is for good, not for a retry
     */
    public function update(
        int $fencing_token,
        #[\SensitiveParameter] // A comment before PHP 8.2.
        string $lease_token,
        callable $change
    ): bool {
        if ($fencing_token < 1 || $fencing_token >= 2 ** 53 || $lease_token === '') {
            throw new InvalidArgumentException("$fencing_token and its lease token are not of a lease");
        }
        // Not the file itself: the rename below puts another one in its place.
        $lock = fopen("$this->path.lock", 'c');
        if (!$lock || !flock($lock, LOCK_EX)) {
            throw new RuntimeException("$this->path.lock cannot be locked");
        }
        try {
            [$greatest, $writer, $content] = $this->read();
            $lease = hash('sha256', $lease_token);
            if ($fencing_token < $greatest || ($fencing_token === $greatest && $lease !== $writer)) {
                return false;
            }
            $this->replace("$fencing_token $lease\n" . $change($content));
            return true;
        } finally {
            fclose($lock); // The system does it for a process that is killed.
        }
    }

    public function content(): string
    {
        return $this->read()[2];
    }

    /** @return array{int, string, string} fencing token, SHA-256 of the lease token, content */
    private function read(): array
    {
        if (!file_exists($this->path)) {
            return [0, '', ''];
        }
        $text = (string) file_get_contents($this->path);
        if (!preg_match('/\A([0-9]{1,16}) ([0-9a-f]{64})\n/', $text, $first)) {
            throw new UnexpectedValueException("$this->path is no fenced file");
        }
        return [(int) $first[1], $first[2], substr($text, strlen($first[0]))];
    }

    private function replace(string $text): void
    {
        // Only who has the lock writes it, and what a killed process left is written over.
        $new = fopen("$this->path.new", 'w');
        $written = $new && fwrite($new, $text) === strlen($text) && fflush($new) && $this->sync($new);
        if (!$written || !fclose($new) || !rename("$this->path.new", $this->path)) {
            throw new RuntimeException("$this->path cannot be written");
        }
        $directory = @fopen(dirname($this->path), 'r');
        if ($directory && !$this->sync($directory)) {
            throw new RuntimeException("$this->path may be the old one after a power failure");
        }
    }

    /** @param resource $file */
    private function sync($file): bool
    {
        return !function_exists('fsync') || fsync($file); // PHP 8.1
    }
}
