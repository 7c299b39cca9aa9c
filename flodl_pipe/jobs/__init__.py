"""What can be done with a pipeline, one module a verb. A module's ``main(config)`` is what ``job=VERB`` runs."""
