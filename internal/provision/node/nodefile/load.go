package nodefile

import (
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/manifest"
	"github.com/berthrun/berth/internal/registries"
)

// Default returns the node file with all defaults.
func Default() *Node {
	oom := -999
	return &Node{
		APIVersion: APIVersion,
		Kind:       Kind,
		Runtime: Runtime{
			Name: "berth", LogLevel: "info", CgroupDriver: "auto",
			GVisor:  GVisor{Platform: "systrap"},
			NVIDIA:  NVIDIA{Mode: "auto", Runtime: "/usr/bin/nvidia-container-runtime"},
			CDI:     CDI{Enabled: true, SpecDirs: []string{"/etc/cdi", "/var/run/cdi"}},
			Service: Service{NoFile: "1048576", NProc: "infinity", Core: "infinity", Tasks: "infinity", OOMScore: &oom},
		},
		Network: Network{Mode: "cni", ConfDir: "/etc/cni/net.d"},
		Kernel:  Kernel{Swap: "keep"},
		Kubelet: Kubelet{ManifestsDir: "/etc/kubernetes/manifests"},
		Logs:    Logs{MaxSize: "10Mi", MaxFile: 5},
	}
}

// Load reads a node file, YAML or JSON, over the defaults and checks it. The error is
// manifest.Faults: all of them, each with its place. file is for them only.
func Load(file string, data []byte) (*Node, error) {
	n := Default()
	n.APIVersion, n.Kind, n.Runtime.Name = "", "", ""
	r := manifest.Read(file, data, n)
	n.settle()
	check(n, r)
	if err := r.Err(); err != nil {
		return nil, err
	}
	return n, nil
}

// Place returns the line and column of a path, or of the nearest path above it, in a node file's
// text.
func Place(text []byte, path string) (line, column int) {
	return manifest.Read("", text, Default()).Place(path)
}

// Has reports whether a node file's text sets a path.
func Has(text []byte, path string) bool {
	return path != "" && manifest.Read("", text, Default()).Has(path)
}

// settle gives the entries of lists their defaults.
func (n *Node) settle() {
	for i := range n.Runtime.Handlers {
		setDefault(&n.Runtime.Handlers[i].Type, "oci")
	}
	for i := range n.Files {
		setDefault(&n.Files[i].Type, "file")
	}
	for i := range n.Hooks {
		setDefault(&n.Hooks[i].When, "before")
	}
	registries.SetDefaults(n.Registries)
}

func setDefault(text *string, value string) {
	if *text == "" {
		*text = value
	}
}

// Schema is the JSON schema of the node file.
func Schema() []byte { return manifest.Schema("Node of "+APIVersion, Default()) }

// Sample renders a node file with help as comments.
func Sample(n *Node) string { return manifest.Sample(n) }

// Short renders the runtime and the fields of a node file that differ from their defaults.
func Short(n *Node) string {
	usual := Default()
	usual.APIVersion, usual.Kind, usual.Runtime.Name = "", "", ""
	return manifest.Short(n, usual)
}

// Reference renders the page of every field.
func Reference() string {
	return "# The node file, field by field\n\n" +
		"<!-- Made by `make generate` from internal/provision/node/nodefile. Do not edit. -->\n\n" +
		"`berth node init --all` writes a file with every field; docs/node.md describes its use; docs/node.schema.json is its JSON schema.\n\n" +
		manifest.Reference(Default())
}

// Duration is a time.Duration that is written as "10m".
type Duration time.Duration

// UnmarshalText parses "10m".
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || parsed < 0 {
		return fmt.Errorf("%q: want a duration such as 500ms, 90s or 1h", text)
	}
	*d = Duration(parsed)
	return nil
}

// MarshalText writes "10m0s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string { return time.Duration(d).String() }

// On returns the value of an optional switch; unset is on.
func On(b *bool) bool { return b == nil || *b }
