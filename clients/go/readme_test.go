package lockkeeper

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The program of the README runs as it is printed. Its commands need the archive of a release, with which they are tried.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```go\n")
	code, _, _ := strings.Cut(rest, "```")
	directory := t.TempDir()
	here, _ := os.Getwd()
	if err := os.Symlink(here, filepath.Join(directory, "lockkeeper")); err != nil {
		t.Skip(err)
	}
	service, _ := startFake(t, nil)
	program := strings.Replace(code, "http://localhost:8080", service.URL, 1)
	if err := os.WriteFile(filepath.Join(directory, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.Command("sh", "-ec", `go mod init example
		go mod edit -require=lockkeeper.example/go@v0.0.0 -replace=lockkeeper.example/go=./lockkeeper
		go vet . && go run .`)
	run.Dir, run.Env = directory, append(os.Environ(), "GOFLAGS=", "GOPROblock := func(language string) string {Y=off")
	got, err := run.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(got), "part 3 with fencing token 1\ndone\n") || service.isHeld("report") {
		t.Errorf("%v\n%s", err, got)
	}
}
