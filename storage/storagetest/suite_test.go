package storagetest_test

import (
	"testing"

	"github.com/rhumbdb/rhumb/storage/storagetest"
)

func TestConformance(t *testing.T) { eachLog(t, storagetest.Run) }
