//go:build integration

package native_test

import (
	"testing"

	"github.com/berthrun/berth/internal/engine/enginetest"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// The life of a pod on a real supervisor: call 1, 2, 3, ... fails in turn.
func TestPodFaults(t *testing.T) { podtest.RunFaults(t, podParts(t)) }

// The same, but the daemon dies at call 1, 2, 3, ...
func TestPodCrashes(t *testing.T) { podtest.RunCrashes(t, podParts(t)) }

// podParts returns a real engine with a fake network and fake images.
func podParts(t *testing.T) *podtest.Parts {
	t.Helper()
	net, images := &podtest.Network{}, podtest.NewImages()
	images.Image.Config.Env = []string{"PATH=/bin"}
	sh := func(script string) []string { return []string{"sh", "-c", script} }
	return &podtest.Parts{
		Engine: newWorld(t), Network: net, Images: images, ImageName: podtest.ImageName, Left: net.Left,
		Programs: enginetest.Programs{Sleep: sh(`trap "exit 143" TERM; echo ready; while :; do sleep 0.05; done`), Ready: "ready"},
	}
}
