//go:build integration

package integration

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
)

// TestPodRunExample runs the example of docs/pods.md.
func TestPodRunExample(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	archive, err := os.Open(filepath.Join(b.Bin, "hello-image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if _, err := b.Import(archive); err != nil {
		t.Fatal(err)
	}
	out, errOut, code := run(t, b, "", "pod", "run", "--rm", "-f", "../../examples/sidecar-pod.yaml")
	if code != 0 {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	for _, line := range []string{
		`visitor | app="hello"`, "visitor | hello from berth, pod sidecar", "web | GET / from", "web | GET /goodbye from", "web | stopped",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("there is no %q in\n%s", line, out)
		}
	}
	wantNothing(t, b)
}

const sourcesPod = `
apiVersion: v1
kind: Pod
metadata: {name: sources}
spec:
  restartPolicy: Never
  dnsConfig:
    nameservers: [192.0.2.53]
    searches: [lab.example]
    options: [{name: ndots, value: "4"}]
  volumes:
    - {name: made, hostPath: {path: HOSTDIR/made, type: DirectoryOrCreate}}
    - {name: file, hostPath: {path: HOSTDIR/file, type: FileOrCreate}}
    - {name: sock, hostPath: {path: HOSTDIR/sock, type: Socket}}
    - {name: null, hostPath: {path: /dev/null, type: CharDevice}}
    - {name: image, image: {reference: IMAGE, pullPolicy: Never}}
  containers:
    - name: a
      image: IMAGE
      command: [sh, -c]
      args:
        - |
          grep -c "^nameserver 192.0.2.53$" /etc/resolv.conf; grep -c "^search.*lab.example" /etc/resolv.conf
          grep -c "^options.*ndots:4" /etc/resolv.conf
          test -d /made && test -f /file && test -S /sock && test -c /null && echo kinds
          test -x /image/bin/busybox && ! touch /image/x 2>/dev/null && echo image
      volumeMounts:
        - {name: made, mountPath: /made}
        - {name: file, mountPath: /file}
        - {name: sock, mountPath: /sock}
        - {name: null, mountPath: /null}
        - {name: image, mountPath: /image}
`

// TestPodRunSources: dnsConfig beside the host's DNS, the types of hostPath, and an image
// as a volume.
func TestPodRunSources(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.Needs(t, translate.ImageMounts)
	host := filepath.Join(b.Dir, "hostdir")
	if err := os.Mkdir(host, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(host, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	yaml := strings.ReplaceAll(strings.ReplaceAll(sourcesPod, "HOSTDIR", host), "name: null", `name: "null"`)
	out, errOut, code := run(t, b, "", "pod", "run", "--rm", "-f", podFile(t, b, "sources", yaml))
	if code != 0 || out != "1\n1\n1\nkinds\nimage\n" {
		t.Errorf("exit code %d, %q, %s", code, out, errOut)
	}
	wantNothing(t, b)
	for _, wrong := range []string{"File", "Directory", "BlockDevice", "CharDevice"} {
		file := podFile(t, b, "wrong", strings.Replace(yaml, "type: Socket", "type: "+wrong, 1))
		if _, errOut, code := run(t, b, "", "pod", "run", "--rm", "-f", file); code == 0 || !strings.Contains(errOut, "sock") {
			t.Errorf("a socket as %s: exit code %d, %s", wrong, code, errOut)
		}
	}
	wantNothing(t, b)
}
