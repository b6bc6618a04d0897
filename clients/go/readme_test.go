package lockkeeper

import (
	"os"
	"strings"
	"testing"
)

// The code of the README is that of the examples, which run.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	flat := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	blocks := strings.Split(string(readme), "```go\n")[1:]
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if !strings.Contains(flat(string(examples)), flat(code)) {
			t.Errorf("no example has\n%s", code)
		}
	}
	if len(blocks) != 1 {
		t.Errorf("%d blocks", len(blocks))
	}
}
