package enginetest_test

import (
	"testing"

	"github.com/berthrun/berth/internal/engine/enginetest"
)

func TestFakeConforms(t *testing.T) {
	enginetest.Run(t, func(*testing.T) *enginetest.Setup {
		return &enginetest.Setup{Engine: enginetest.NewFake(), ImageID: "sha256:fake", Programs: enginetest.FakePrograms()}
	})
}
