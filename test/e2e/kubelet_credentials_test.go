//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/kubelet"
)

// pulledPod has one container of an image that the kubelet pulls each time.
const pulledPod = `apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default}
spec:
  hostNetwork: true
  containers:
  - {name: c, image: "%[2]s", imagePullPolicy: Always, command: [/bin/sh, -c, "trap 'exit 0' TERM; while :; do sleep 1; done"]}
  terminationGracePeriodSeconds: 2
`

// TestKubeletCredentialProvider: a kubelet's credential provider has other credentials for each namespace of one registry.
// berth uses what comes with a pull, and no credentials of another one from the same registry: a pull with a wrong password
// fails, though the node has the same content.
func TestKubeletCredentialProvider(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	img, err := imagetest.Build(harness.BusyboxSpec(b, "app:1"))
	if err != nil {
		t.Fatal(err)
	}
	namespaces := http.NewServeMux()
	for _, user := range []string{"red", "blue", "locked"} {
		r := &imagetest.Registry{User: user, Password: "of-" + user}
		r.Push(user+"/app", "1", img)
		namespaces.Handle("/v2/"+user+"/", r)
	}
	host := b.Serve(namespaces)
	providers := t.TempDir()
	writeFile(t, filepath.Join(providers, "provider"), 0o755, fmt.Sprintf(`#!/bin/sh
cat > /dev/null
cat <<EOF
{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheKeyType": "Registry", "cacheDuration": "0s",
 "auth": {"%[1]s/red": {"username": "red", "password": "of-red"}, "%[1]s/blue": {"username": "blue", "password": "of-blue"},
          "%[1]s/locked": {"username": "locked", "password": "wrong"}}}
EOF
`, host))
	config := filepath.Join(providers, "config.yaml")
	writeFile(t, config, 0o600, `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- {name: provider, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: ["`+host+`"], defaultCacheDuration: 0s}
`)
	k := kubelet.Start(t, b, kubelet.Options{Args: []string{"--image-credential-provider-config=" + config, "--image-credential-provider-bin-dir=" + providers}})
	for _, name := range []string{"red", "blue", "locked"} {
		k.Add(name, fmt.Sprintf(pulledPod, name, host+"/"+name+"/app:1"))
	}
	k.AwaitReady("red", "blue")
	k.Await("the pod with wrong credentials to wait for its image", func() bool {
		for _, pod := range k.Pods() {
			if strings.HasPrefix(pod.Name, "locked") {
				return waitsForImage(pod, "401")
			}
		}
		return false
	})
	for _, name := range []string{"red", "blue", "locked"} {
		k.Remove(name)
	}
	k.Await("all pods to be gone", func() bool { return len(k.Pods()) == 0 && len(sandboxes(t, b)) == 0 })
}

// waitsForImage reports whether the image of a container cannot be pulled, for a reason.
func waitsForImage(pod corev1.Pod, reason string) bool {
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff") {
			return strings.Contains(w.Message, reason)
		}
	}
	return false
}

func writeFile(t *testing.T, path string, mode os.FileMode, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}
