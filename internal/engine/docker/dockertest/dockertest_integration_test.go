//go:build integration

package dockertest_test

import (
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/api"
	"github.com/berthrun/berth/internal/engine/docker/dockertest"
)

func TestEngineAnswersAfterItWasKilled(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{LiveRestore: true})
	client, err := api.New(api.Options{Endpoint: d.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	facts, err := client.Facts(t.Context())
	if err != nil || facts.CgroupDriver != "cgroupfs" || !facts.LiveRestore || facts.APIVersion == "" {
		t.Fatalf("facts %+v, %v", facts, err)
	}
	d.Kill()
	if _, err := client.Facts(t.Context()); err == nil {
		t.Error("an engine that was killed answers")
	}
	d.Launch()
	if _, err := client.Facts(t.Context()); err != nil {
		t.Error(err)
	}
}
