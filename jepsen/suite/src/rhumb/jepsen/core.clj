(ns rhumb.jepsen.core
  "The command line: one test of a workload with faults."
  (:require [clojure.string :as str]
            [jepsen.checker :as checker]
            [jepsen.cli :as cli]
            [jepsen.generator :as gen]
            [jepsen.nemesis :as n]
            [jepsen.os :as os]
            [jepsen.tests :as tests]
            [jepsen.util :as util]
            [rhumb.jepsen.checker :as rk]
            [rhumb.jepsen.db :as db]
            [rhumb.jepsen.nemesis :as rn]
            [rhumb.jepsen.workload.append :as append]
            [rhumb.jepsen.workload.bank :as bank]
            [rhumb.jepsen.workload.misc :as misc]
            [rhumb.jepsen.workload.register :as register]
            [rhumb.jepsen.workload.sets :as sets])
  (:gen-class))

(def workloads
  {:register register/workload
   :append append/workload
   :set sets/set-workload
   :counter misc/counter-workload
   :bank bank/workload
   :batch misc/batch-workload
   :create misc/create-workload
   :insert sets/insert-workload
   :scan sets/scan-workload})

(defn whole-nemesis
  "Waits for the whole cluster, after the faults."
  []
  (reify
    n/Reflection (fs [_] #{:whole})
    n/Nemesis
    (setup! [this _] this)
    (invoke! [_ test op]
      (assoc op :value (try (db/await-whole test) :whole
                            (catch Exception e [:not-whole (ex-message e)]))))
    (teardown! [_ _])))

(defn- generators
  "Clients under faults, then heal, health, and final reads."
  [opts workload package]
  (gen/phases
    (->> (:generator workload)
         (gen/stagger (/ (:rate opts)))
         (gen/nemesis (when (:generator package) [(gen/sleep 5) (:generator package)]))
         (gen/time-limit (:time-limit opts)))
    (gen/log "heals")
    (gen/nemesis (:final-generator package))
    (gen/nemesis (gen/once {:type :info :f :whole}))
    (gen/log "final reads")
    (gen/sleep 2)
    (->> (:final-generator workload)
         (gen/map #(assoc % :final? true))
         (gen/clients))))

(defn rhumb-test
  "A test from the options of the command line."
  [opts]
  (let [opts (assoc opts :concurrency-number (:concurrency opts))
        workload ((get workloads (:workload opts)) opts)
        package (rn/packages opts)
        numbers (atom {})]
    (merge tests/noop-test
           opts
           (select-keys workload [:client :accounts :total-amount :max-transfer])
           {:name (str "rhumb-" (name (:workload opts)) "-" (str/join "+" (map name (:faults opts)))
                       (when (:node-log opts) "-node-log")
                       (when (:canary opts) "-canary"))
            :os os/noop
            :db (db/db (boolean (some #{:disk} (:faults opts))))
            :tokens (atom {})
            ; The nodes that are :drained, or :gone, for as long as they are.
            :leaving (atom {})
            ; The packets that partitions have dropped and no completion has counted yet.
            :dropped (atom 0)
            :numbers numbers
            :nemesis (n/compose [(whole-nemesis) (:nemesis package)])
            :plot {:nemeses (:perf package)}
            :checker (checker/compose
                       {:workload (:checker workload)
                        :effects (rk/effects (:faults opts))
                        :final (rk/final-reads)
                        :panics (rk/panics)
                        :intact (rk/intact (:faults opts))
                        :stats (checker/stats)
                        :exceptions (checker/unhandled-exceptions)
                        :perf (checker/perf)})
            :generator (generators opts workload package)})))

(defn- words [text] (map keyword (remove str/blank? (str/split text #","))))

(def options
  [["-w" "--workload NAME" (str "one of " (str/join ", " (map name (keys workloads))))
    :default :register :parse-fn keyword :validate [workloads (str "one of " (str/join ", " (map name (keys workloads))))]]
   ["-f" "--faults LIST" (str "some of " (str/join ",", (map name rn/faults)) ", all or none")
    :default [] :parse-fn (fn [t] (case t "all" rn/faults "none" [] (words t)))
    :validate [#(every? (set rn/faults) %) (str "some of " (str/join ", " (map name rn/faults)))]]
   [nil "--rhumb FILE" "the program to install, for the nodes" :default "../../bin/rhumb"]
   [nil "--topology LIST" "the region of each node, one that is well known" :default ["frankfurt" "frankfurt" "virginia" "virginia" "singapore"] :parse-fn #(str/split % #",")]
   [nil "--memory SIZE" "memory of a node" :default "256MiB"]
   [nil "--node-log" "the stores of the nodes have logs of their own (--experimental-node-log)"]
   ["-r" "--rate HZ" "operations a second, of all clients together" :default 100 :parse-fn parse-double]
   [nil "--interval SECONDS" "mean time between two changes of the nemesis" :default 8 :parse-fn parse-double]
   [nil "--canary" "the program is a canary build: note that in the name of the test"]])

(defn -main [& args]
  (cli/run! (merge (cli/single-test-cmd {:test-fn rhumb-test :opt-spec options})
                   (cli/serve-cmd))
            args))
