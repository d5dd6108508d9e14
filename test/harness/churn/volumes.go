package churn

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	corev1 "k8s.io/api/core/v1"
)

const allVolumes = `
volumes:
- {name: disk, emptyDir: {}}
- {name: ram, emptyDir: {medium: Memory, sizeLimit: 8Mi}}
- {name: config, configMap: {name: config}}
- {name: secret, secret: {secretName: secret}}
- name: projected
  projected:
    sources:
    - {serviceAccountToken: {path: token, expirationSeconds: 3600}}
    - {configMap: {name: config, items: [{key: key, path: from-config}]}}
    - {downwardAPI: {items: [{path: note, fieldRef: {fieldPath: "metadata.annotations['note']"}}]}}
- {name: info, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
`

const imageVolume = `- {name: image, image: {reference: "` + harness.Busybox + `", pullPolicy: Never}}
`

const allMounts = `
  volumeMounts:
  - {name: disk, mountPath: /disk}
  - {name: disk, mountPath: /sub, subPath: below}
  - {name: ram, mountPath: /ram}
  - {name: config, mountPath: /config}
  - {name: secret, mountPath: /secret, readOnly: true}
  - {name: projected, mountPath: /projected}
  - {name: info, mountPath: /info}
`

const imageMount = `  - {name: image, mountPath: /image}
`

// allThere are commands that exit with another code for each wrong volume.
const allThere = `
  - "echo a > /disk/a && [ -d /disk/below ] && echo b > /sub/b && [ $(cat /disk/below/b) = b ] || exit 11"
  - "echo a > /ram/a && grep -q ' /ram tmpfs' /proc/mounts || exit 12"
  - "[ $(cat /config/key) = value ] || exit 13"
  - "[ $(cat /secret/key) = hidden ] && ! touch /secret/x 2>/dev/null || exit 14"
  - "[ -s /projected/token ] && [ $(cat /projected/from-config) = value ] && [ $(cat /projected/note) = seen ] || exit 15"
  - "[ $(cat /info/name) = $NAME ] || exit 16"
  - "[ -s /var/run/secrets/kubernetes.io/serviceaccount/token ] || exit 18"
`

const imageThere = `  - "[ -x /image/bin/busybox ] && ! touch /image/x 2>/dev/null || exit 17"
`

const allDone = `  - "exit 0"
`

// volumes: each kind of volume exists, with its content.
func volumes(ctx context.Context, p *pod) error {
	return p.volumesIn(ctx, "hostUsers: true")
}

// userNamespace: the same in a pod with a user namespace.
func userNamespace(ctx context.Context, p *pod) error {
	return p.volumesIn(ctx, "hostUsers: false")
}

func (p *pod) volumesIn(ctx context.Context, users string) error {
	there, mounts, volumes := allThere, allMounts, allVolumes
	if p.b.Refuses(translate.ImageMounts) == nil {
		there, mounts, volumes = there+imageThere, mounts+imageMount, volumes+imageVolume
	}
	err := p.create(ctx, fmt.Sprintf(`
restartPolicy: Never
%s
containers:
- name: main
  env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  args:
  - "cat /proc/self/uid_map > /churn/map"
%s%s%s`, users, strings.TrimPrefix(there, "\n")+allDone, strings.TrimPrefix(mounts, "\n"), strings.TrimPrefix(volumes, "\n")))
	if err != nil {
		return err
	}
	if _, err := p.awaitEnd(ctx, corev1.PodSucceeded, map[string]int32{"main": 0}); err != nil {
		if p.hasLastIDs() {
			return nil // the kubelet requests them again and again
		}
		return err
	}
	fields := strings.Fields(strings.Join(p.lines("map"), " "))
	if own := len(fields) == 3 && fields[1] != "0"; own != strings.HasSuffix(users, "false") {
		return fmt.Errorf("its map of users is %q, and it has %s", fields, users)
	}
	return nil
}

// hasLastIDs reports whether the kubelet has given the pod the last range of ids that fits into 32
// bits. The kernel has no id of all ones, and maps no such range.
func (p *pod) hasLastIDs() bool {
	data, err := os.ReadFile(filepath.Join(p.k.Root(), "pods", p.uid, "userns"))
	return err == nil && strings.Contains(string(data), lastIDs)
}

// lastIDs is where that range begins.
const lastIDs = "4294901760"

// hostPort: a port of the host leads to the pod, as long as the pod exists.
func hostPort(ctx context.Context, p *pod) error {
	port := 20_000 + p.number%10_000
	err := p.create(ctx, fmt.Sprintf(`
terminationGracePeriodSeconds: 5
containers:
- name: main
  args: ["trap 'exit 0' TERM", "mkdir /tmp/www; echo %s > /tmp/www/index.html; httpd -f -p 8080 -h /tmp/www &", "while :; do sleep 1; done"]
  ports: [{containerPort: 8080, hostPort: %d}]
  readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1, timeoutSeconds: 10}
`, p.name, port))
	if err != nil {
		return err
	}
	if err := p.awaitReady(ctx); err != nil {
		return err
	}
	url := fmt.Sprintf("http://192.0.2.10:%d/", port)
	if out, err := fetch(p.b, url); err != nil || out != p.name {
		return fmt.Errorf("from another host %s answers %q, %w", url, out, err)
	}
	if _, err := p.remove(ctx, -1); err != nil {
		return err
	}
	if out, err := fetch(p.b, url); err == nil {
		return fmt.Errorf("%s answers %q when the pod is gone", url, out)
	}
	return nil
}

// fetch gets a page from the namespace beyond the host.
func fetch(b *harness.Berth, url string) (string, error) {
	cmd := b.InWorld("curl", "-sS", "-m", "10", "-f", url)
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}
