package fields

import (
	"os"
	"strings"
	"testing"
)

func TestPageNamesEveryHonouredField(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/pods.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range strings.Fields(honoured) {
		if !strings.Contains(string(page), "`"+field+"`") {
			t.Errorf("docs/pods.md does not name %s", field)
		}
	}
}
