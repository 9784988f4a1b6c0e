{% extends "container/Dockerfile" %}
{% block build_stage %}
# The checkout: what is built, and the recipe.
COPY . /opt/sestina-source
{{ super() }}
{% endblock %}
