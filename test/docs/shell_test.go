package docs

import (
	"strings"
	"testing"
)

func TestScripts(t *testing.T) {
	for script, fault := range map[string]string{
		"berth info":                                          "",
		"berth pod run -f x.yaml # comment":                   "",
		"X=$(berth pod ls --nonsense)":                        "nonsense",
		"berth pod fly":                                       "fly",
		"berth pod run":                                       "file",
		"berth image pull":                                    "arg",
		"sudo -n /usr/local/bin/berth info -x":                "-x",
		"docker exec -i NODE crictl ps --walls":               "walls",
		"docker exec NODE systemctl restart berth":            "",
		"systemctl restart berth --now":                       "",
		"ctr --namespace=k8s.io images import - < app.tar":    "",
		"kind create cluster --name dev":                      "",
		"kind create cluster --nome dev":                      "nome",
		"berth pod exec web -- sh -c 'echo hi'":               "",
		"berth node apply \\\n  --flag":                       "flag",
		"if berth info; then":                                 "then",
		"berth cluster create dev --wait 2m && berth nothing": "nothing",
	} {
		_, err := checkScript(script + "\n")
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v, want a fault with %q", script, err, fault)
		}
	}
}
