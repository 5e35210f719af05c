(ns rhumb.jepsen.workload.register
  "Registers that are read, written, and changed on the condition of a version. Knossos searches an order of all operations of a key."
  (:require [jepsen.independent :as independent]
            [jepsen.tests.linearizable-register :as register]
            [rhumb.jepsen.client :as rc])
  (:import (io.rhumb.jepsen Change)))

(defn- number [v] (some-> (rc/text v) parse-long))

(defrecord Registers [used]
  rc/Workload
  (answer [_ c test {:keys [f value] :as op}]
    (let [[k v] value
          region (rc/home test)
          name (str "register-" k)]
      (swap! used conj k)
      (case f
        :read (assoc op :type :ok :value (independent/tuple k (number (rc/get-one c test region name))))
        :write (do (rc/write! c test region [(rc/put test name v)])
                   (assoc op :type :ok))
        :cas (let [[from to] v
                   seen (try (rc/get-one c test region name)
                             (catch io.rhumb.jepsen.Failure e e))]
               (cond
                 ; The read changed nothing.
                 (instance? Throwable seen) (assoc op :type :fail :error (.getMessage ^Throwable seen))
                 (not= from (number seen)) (assoc op :type :fail :error :other-value)
                 :else (do (rc/write! c test region [(.ifVersion ^Change (rc/put test name to) seen)])
                           (assoc op :type :ok))))))))

(defn workload [opts]
  (let [used (atom (sorted-set))]
    (assoc (register/test {:nodes (:nodes opts) :per-key-limit 150 :process-limit 40})
           :client (rc/client (->Registers used))
           ; A delay, because the keys are known at the end only.
           :final-generator (delay (mapv (fn [k] {:f :read :value (independent/tuple k nil)}) @used)))))
