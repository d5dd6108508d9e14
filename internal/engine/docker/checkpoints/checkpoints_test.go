package checkpoints

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// goldens are files as the releases wrote them. Their checksums come from the printer that the
// releases use, with types of the same names.
func goldens() map[string]string {
	const (
		newPorts = `"port_mappings":[{"protocol":"tcp","container_port":80,"host_port":8080,"host_ip":"127.0.0.1"},{"protocol":"sctp","container_port":53,"host_port":0}]`
		oldPorts = `"port_mappings":[{"protocol":"tcp","container_port":80,"host_port":8080},{"protocol":"udp","container_port":53,"host_port":0}]`
	)
	return map[string]string{
		"cri-dockerd": `{"version":"v1","name":"web","namespace":"shop","data":{"port_mappings":[` +
			`{"protocol":"tcp","container_port":80,"host_port":8080,"host_ip":"127.0.0.1"},{"protocol":"udp","container_port":53,"host_port":0}]},"checksum":2195515454}`,
		"cri-dockerd, host network": `{"version":"v1","name":"web","namespace":"shop","data":{"host_network":true},"checksum":12315789}`,
		"cri-dockerd, no ports":     `{"version":"v1","name":"web","namespace":"shop","data":{},"checksum":2305795928}`,
		"dockershim 1.23":           `{"version":"v1","name":"web","namespace":"shop","data":{` + newPorts + `},"checksum":2576918480}`,
		"dockershim, host network":  `{"version":"v1","name":"web","namespace":"shop","data":{"host_network":true},"checksum":996107268}`,
		"dockershim 1.10":           `{"version":"v1","name":"web","namespace":"shop","data":{` + oldPorts + `},"checksum":2761074970}`,
		"dockershim 1.9":            `{"version":"v1","name":"web","namespace":"shop","data":{` + oldPorts + `},"checksum":834951377}`,
		"dockershim 1.9, host network": `{"version":"v1","name":"web","namespace":"shop","data":{"host_network":true},` +
			`"checksum":3669528719}`,
		"dockershim 1.7": `{"version":"v1","name":"web","namespace":"shop","data":{"port_mappings":[` +
			`{"protocol":"tcp","container_port":80,"host_port":8080}]},"checksum":2299466427}`,
		"dockershim 1.6": `{"version":"v1","name":"web","namespace":"shop","data":{"port_mappings":[` +
			`{"protocol":"tcp","container_port":80,"host_port":8080}]},"checksum":237986621}`,
		"dockershim 1.6, no data": `{"version":"v1","name":"web","namespace":"shop","checksum":2634233553}`,
	}
}

func TestParse(t *testing.T) {
	tcp := &runtimeapi.PortMapping{ContainerPort: 80, HostPort: 8080}
	local := &runtimeapi.PortMapping{ContainerPort: 80, HostPort: 8080, HostIp: "127.0.0.1"}
	udp := &runtimeapi.PortMapping{Protocol: runtimeapi.Protocol_UDP, ContainerPort: 53}
	sctp := &runtimeapi.PortMapping{Protocol: runtimeapi.Protocol_SCTP, ContainerPort: 53}
	ports := map[string][]*runtimeapi.PortMapping{
		"cri-dockerd": {local, udp}, "dockershim 1.23": {local, sctp}, "dockershim 1.10": {tcp, udp},
		"dockershim 1.9": {tcp, udp}, "dockershim 1.7": {tcp}, "dockershim 1.6": {tcp},
	}
	for name, raw := range goldens() {
		want := &Checkpoint{Name: "web", Namespace: "shop", Ports: ports[name], HostNetwork: strings.Contains(name, "host network")}
		got, err := Parse([]byte(raw))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Each change of a file is found: of a digit, of a name in a format that protects it, of its end.
func TestDamagedCheckpoints(t *testing.T) {
	golden := goldens()
	for name, raw := range map[string]string{
		"empty":              "",
		"torn":               golden["cri-dockerd"][:40],
		"another checksum":   strings.Replace(golden["cri-dockerd"], "2195515454", "2195515455", 1),
		"another port":       strings.Replace(golden["cri-dockerd"], "8080", "8081", 1),
		"a port less":        strings.Replace(golden["dockershim 1.23"], `,"host_port":0`, "", 1),
		"another name":       strings.Replace(golden["dockershim 1.9"], "web", "wep", 1),
		"another version":    strings.Replace(golden["cri-dockerd"], "v1", "v2", 1),
		"a mapping of null":  strings.Replace(golden["dockershim 1.7"], `[{`, `[null,{`, 1),
		"no data":            `{"version":"v1","name":"web","namespace":"shop","checksum":2305795928}`,
		"another type":       `{"version":"v1","name":7,"namespace":"shop","checksum":2305795928}`,
		"a port of another":  strings.Replace(golden["dockershim 1.10"], "udp", "tcp", 1),
		"host network, bare": strings.Replace(golden["dockershim 1.7"], `"data":{`, `"data":{"host_network":true,`, 1),
	} {
		if got, err := Parse([]byte(raw)); !errors.Is(err, errs.State) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// The checksum does not protect from a port that never was one.
func TestPortsOutOfRange(t *testing.T) {
	big := int32(70000)
	f := file{Version: schemaVersion, Data: &fileData{PortMappings: []*filePort{{HostPort: &big}}}}
	d := dialects()[0]
	text, _ := d.print(&f)
	raw := `{"version":"v1","name":"","namespace":"","data":{"port_mappings":[{"host_port":70000}]},"checksum":` + printed(new(sum(d.hash(), text))) + `}`
	if _, err := Parse([]byte(raw)); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "host port 70000 is out of range") {
		t.Errorf("%v", err)
	}
}

func TestDirs(t *testing.T) {
	dir := t.TempDir()
	d := Dirs{Roots: []string{filepath.Join(dir, "dockershim"), filepath.Join(dir, "cri-dockerd")}, Quarantine: filepath.Join(dir, "quarantine")}
	write := func(root int, id, text string) string {
		t.Helper()
		name := path(d.Roots[root], id)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	if _, err := d.Read("absent"); !errors.Is(err, errs.NotFound) {
		t.Errorf("no directories: %v", err)
	}
	kept := write(1, "good", goldens()["cri-dockerd"])
	if cp, err := d.Read("good"); err != nil || len(cp.Ports) != 2 {
		t.Errorf("%+v, %v", cp, err)
	}
	bad := write(0, "bad", "{")
	_, err := d.Read("bad")
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) || corrupt.File != bad || !errors.Is(err, errs.State) {
		t.Fatalf("%v", err)
	}
	for range 2 { // reading changes nothing
		if raw, err := os.ReadFile(bad); err != nil || string(raw) != "{" {
			t.Errorf("the damaged file: %q, %v", raw, err)
		}
		if raw, err := os.ReadFile(corrupt.Quarantine); err != nil || string(raw) != "{" {
			t.Errorf("quarantine: %q, %v", raw, err)
		}
		if _, err := d.Read("bad"); !errors.As(err, &corrupt) {
			t.Errorf("the second time: %v", err)
		}
	}
	if err := d.Remove("bad"); err != nil {
		t.Error(err)
	}
	if _, err := d.Read("bad"); !errors.Is(err, errs.NotFound) {
		t.Errorf("after its removal: %v", err)
	}
	if err := errors.Join(d.Remove("good"), d.Remove("good"), d.Remove("absent")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(kept); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the checkpoint is left: %v", err)
	}
}

// A root that is a file has no checkpoints.
func TestRootIsAFile(t *testing.T) {
	root := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(root, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := Dirs{Roots: []string{root}}
	if _, err := d.Read("a"); !errors.Is(err, errs.NotFound) {
		t.Error(err)
	}
	if err := d.Remove("a"); err != nil {
		t.Error(err)
	}
}

// FuzzCheckpoint: a file is refused as damaged, or its ports can be used.
func FuzzCheckpoint(f *testing.F) {
	for _, raw := range goldens() {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		cp, err := Parse(raw)
		if err != nil {
			if !errors.Is(err, errs.State) {
				t.Errorf("the error has another kind: %v", err)
			}
			return
		}
		for _, p := range cp.Ports {
			if p.GetHostPort() < 0 || p.GetHostPort() > 65535 || p.GetContainerPort() < 0 || p.GetContainerPort() > 65535 {
				t.Errorf("ports %v", p)
			}
		}
	})
}
