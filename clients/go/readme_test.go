package lockkeeper

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The commands and the program of the README run as they are printed, in a directory that has nothing but a copy.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := func(language string) string {
		_, rest, _ := strings.Cut(string(text), "```"+language+"\n")
		code, _, _ := strings.Cut(rest, "```")
		return code
	}
	directory := t.TempDir()
	here, _ := os.Getwd()
	if err := os.Symlink(here, filepath.Join(directory, "lockkeeper")); err != nil {
		t.Skip(err)
	}
	service, _ := startFake(t, nil)
	program := strings.Replace(block("go"), "http://localhost:8080", service.URL, 1)
	if err := os.WriteFile(filepath.Join(directory, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.Command("sh", "-ec", block("sh")+"\ngo vet . && go run .")
	run.Dir, run.Env = directory, append(os.Environ(), "GOFLAGS=", "GOPROXY=off")
	got, err := run.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(got), "part 3 with fencing token 1\ndone\n") || service.isHeld("report") {
		t.Errorf("%v\n%s", err, got)
	}
}
