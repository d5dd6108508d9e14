package cri

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/image"
)

// faultyImages is a store that reports lost data.
type faultyImages struct {
	image.Store
	faults []string
}

func (f *faultyImages) Faults() []string { return f.faults }

// TestStatusOfADamagedImageStore: verbose status shows the damage, and the node stays ready.
func TestStatusOfADamagedImageStore(t *testing.T) {
	images := &faultyImages{Store: noImages()}
	c := runtimeapi.NewRuntimeServiceClient(client(t, &fakePods{info: &engine.Info{}}, images, nil))
	for _, faults := range [][]string{nil, {"the database could not be read"}} {
		images.faults = faults
		resp, err := c.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		conditions := map[string]*runtimeapi.RuntimeCondition{}
		for _, condition := range resp.Status.Conditions {
			conditions[condition.Type] = condition
		}
		got := conditions["ImageStoreIntact"]
		if got == nil || got.Status != (faults == nil) || !strings.Contains(got.Message, strings.Join(faults, "")) || got.Status != (got.Reason == "") {
			t.Errorf("faults %q: %v", faults, got)
		}
		if !conditions[runtimeapi.RuntimeReady].Status || !conditions[runtimeapi.NetworkReady].Status {
			t.Errorf("the node is not ready: %v", resp.Status.Conditions)
		}
	}
}
